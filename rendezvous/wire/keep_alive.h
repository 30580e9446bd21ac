// SPDX-License-Identifier: Apache-2.0
// Decides when an agent pings, and evaluates the pongs. They show that the rendezvous heard the
// agent, and the time of its clock. Their absence shows that it is silent. One object serves one
// connection after the other. Pure.
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

// The rendezvous answered the ping that was sent at `sent_at`: it heard this node then, or later.
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

  // Called when a connection opened. The values of set() stay.
  void opened(TimePoint now) {
    opened_at_ = last_answered_ = now;
    ahead_.reset();
  }
  // Sets the times. A connection is silent if no ping of the last `timeout` was answered.
  void set(std::chrono::milliseconds timeout, std::chrono::milliseconds interval);
  // nullopt: set() was not called yet.
  std::optional<std::chrono::milliseconds> timeout() const { return timeout_; }

  // Valid after set(). The time counts from the sending of the last answered ping, so that this
  // side always notices silence before the rendezvous does.
  bool is_silent(TimePoint now) const { return now >= silent_at(); }
  TimePoint silent_at() const { return last_answered_ + *timeout_; }
  // Valid after set(). Returns when half of the time-out is over without an answer. It is later if
  // a ping that was sent on time may still be unanswered then.
  TimePoint quiet_at() const;
  // ping() returns the payload of a ping that is sent now. next() returns when the next ping, or a
  // check of is_silent(), is due. Agents that know the rendezvous' clock ping at the same 16
  // moments of an interval. So the rendezvous reads many pings at each wake-up, at half the cost.
  std::string ping(TimePoint now) const;
  TimePoint next(TimePoint now) const;

  // Called when a pong came. Returns nullopt if it is old or invalid.
  using Pong = variants::variant<agent_event::LinkAnswered, agent_event::ClockSampled>;
  std::optional<Pong> ponged(std::string_view payload, TimePoint now);
  // Returns whether the rendezvous sends clock_pong(), too, after a connection's nth ping, from 0.
  // It does after the first ones, of which the quickest counts. Later one in 5 s is enough, at a
  // third of the cost: in that time clocks differ by a millisecond more at most.
  static bool tells_clock(std::uint64_t nth) { return nth < 9 || nth % 3 == 0; }
  // Returns the rendezvous' second pong to this ping, with its clock's time. Empty: the ping isn't
  // an agent's.
  static std::string clock_pong(std::string_view ping, std::chrono::microseconds clock);

 private:
  TimePoint opened_at_{}, last_answered_{};
  std::optional<std::chrono::milliseconds> timeout_;
  std::chrono::milliseconds interval_{0};  // valid if timeout_ is set
  // How far the rendezvous' clock is ahead of ours, estimated from the last pong.
  std::optional<Clock::duration> ahead_;
};

}  // namespace ddprun::membership
