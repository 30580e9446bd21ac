// SPDX-License-Identifier: Apache-2.0
// Events in virtual time, the earliest first. Events of the same time keep the order in which they
// were put in. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/clock.h"

namespace ddprun::membership::testing {

struct VirtualEvent {
  enum class Kind : std::uint8_t {
    kCall,         // a call of the owner: `what` says which
    kUp,           // a frame of connection `what` arrives at the rendezvous
    kDown,         // the same at its host
    kTick,         // the rendezvous' timer
    kJoinTimeout,  // the join's time is over for connection `what`
    kAlarm,        // a node's alarm: `what` says which
    kLink,         // the node's attempt to connect goes on
    kPing,         // the node pings
  };
  Clock::time_point at{};
  std::uint64_t order = 0;  // set by the queue
  Kind kind = Kind::kCall;
  int node = -1;
  std::uint32_t generation = 0;  // of the node's timer; an older one was set anew
  std::uint64_t what = 0;
};

class EventQueue {
 public:
  void push(VirtualEvent event) {
    event.order = ++num_pushed_;
    heap_.push_back(event);
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  bool empty() const { return heap_.empty(); }
  VirtualEvent pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const VirtualEvent event = heap_.back();
    heap_.pop_back();
    return event;
  }

 private:
  static bool later(const VirtualEvent& a, const VirtualEvent& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }
  std::vector<VirtualEvent> heap_;
  std::uint64_t num_pushed_ = 0;
};

}  // namespace ddprun::membership::testing
