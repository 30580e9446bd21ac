// SPDX-License-Identifier: Apache-2.0
// When an agent pings, and what the answers tell it. They tell that the rendezvous heard it, what
// its clock shows, or that nothing was heard for too long. One open connection after the other.
// Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/variant.h"

namespace ddprun::membership {

namespace agent_event {

// The rendezvous answered what was sent at that time: it has heard of this node then, or later.
struct LinkAnswered {
  Clock::time_point sent_at{};
};
// Between `sent` and `received` the rendezvous' clock showed `answered`.
struct ClockSampled {
  Clock::time_point sent{};
  std::chrono::microseconds answered{};
  Clock::time_point received{};
};

}  // namespace agent_event

class KeepAlive {
 public:
  using TimePoint = Clock::time_point;

  // A connection opened. The values of set() stay.
  void opened(TimePoint now) {
    opened_at_ = last_answered_ = now;
    ahead_.reset();
  }
  // The connection is silent when no ping that was sent within the last `timeout` was answered.
  void set(std::chrono::milliseconds timeout, std::chrono::milliseconds interval);
  // nullopt: not known yet.
  std::optional<std::chrono::milliseconds> timeout() const { return timeout_; }

  // set() only. Counted from the sending of the last answered ping, so that this side always
  // notices before the rendezvous does.
  bool is_silent(TimePoint now) const { return now >= silent_at(); }
  TimePoint silent_at() const { return last_answered_ + *timeout_; }
  // set() only. When half of the time-out is over without an answer. Later if a ping that was sent
  // on time may still be unanswered then.
  TimePoint quiet_at() const;
  // ping(): the payload of one that is sent now. next(): when the next one, or a look at
  // is_silent(), is due. Agents whose rendezvous' clock is known ping at the same moments: 16 in
  // an interval. So the rendezvous reads many pings each time that it wakes, at half the cost.
  std::string ping(TimePoint now) const;
  TimePoint next(TimePoint now) const;

  // A pong came. nullopt: it is old or makes no sense.
  using Pong = variants::variant<agent_event::LinkAnswered, agent_event::ClockSampled>;
  std::optional<Pong> ponged(std::string_view payload, TimePoint now);
  // Whether a connection's nth ping, from 0, gets that second pong. The first ones do, of which the
  // quickest counts. One in 5 s is enough afterwards, for a third of the cost: clocks part by a
  // millisecond at most meanwhile.
  static bool tells_clock(std::uint64_t nth) { return nth < 9 || nth % 3 == 0; }
  // The second pong of a rendezvous, to this ping, when its clock shows `clock`. Empty: a peer that
  // pings so is no agent.
  static std::string clock_pong(std::string_view ping, std::chrono::microseconds clock);

 private:
  TimePoint opened_at_{}, last_answered_{};
  std::optional<std::chrono::milliseconds> timeout_;
  std::chrono::milliseconds interval_{0};  // if timeout_
  // How far the rendezvous' clock is ahead of ours, as well as the last pong tells.
  std::optional<Clock::duration> ahead_;
};

}  // namespace ddprun::membership
