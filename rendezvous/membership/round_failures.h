// SPDX-License-Identifier: Apache-2.0
// The failures of one round in the order in which they happened, not in which they were heard of:
// the first one is the cause, the others are its victims. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/messages.h"
#include "rendezvous/membership/node.h"

namespace ddprun::membership {

class RoundFailures {
 public:
  struct Entry {
    NodeId node = 0;
    std::string node_key;
    WorkerFailure failure;
    Clock::time_point at{};             // when it happened, on our clock
    std::chrono::microseconds error{};  // of `at`
  };

  // A new round began.
  void begin(Clock::time_point now);

  // One that was heard of now. What it says of its time counts between the round's begin and now;
  // where it says nothing, now counts. True: it is the first one, as far as is known.
  bool add(const Node& node, const WorkerFailure& failure, Clock::time_point now);

  bool empty() const { return entries_.empty(); }
  const Entry& first() const { return entries_.front(); }

  // All but the first, in order: "rank 3 (…) failed with exit code 1 12 ms later (± 1 ms)". Of many
  // the first kMaxVictims, and how many more.
  std::vector<std::string> victims() const;

  static constexpr std::size_t kMaxVictims = 8;

  // For the journal: differs from what it was when anything has changed.
  std::uint64_t version() const { return version_; }
  using JournalledByItself = void;
  template <typename Self, typename Fields>
  static void each_field(Self& failures, Fields& fields) {
    fields("entries", failures.entries_);
    fields("num_dropped", failures.num_dropped_);
    fields("round_began", failures.round_began_);
  }

 private:
  std::vector<Entry> entries_;  // by time; the first kMaxVictims + 1
  std::size_t num_dropped_ = 0;
  Clock::time_point round_began_{};
  std::uint64_t version_ = 0;
};

}  // namespace ddprun::membership
