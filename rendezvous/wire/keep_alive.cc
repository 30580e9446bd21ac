// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/keep_alive.h"

#include <algorithm>

#include "common/parsed_number.h"
#include "rendezvous/messages/json_fields.h"

namespace ddprun::membership {

using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

constexpr std::size_t kLongestPing = 32;
constexpr int kSlots = 16;  // moments to ping per interval

// Returns the text's number; nullopt: it isn't a whole number from 0 to 2^53.
std::optional<std::int64_t> number_in(std::string_view text) {
  return number_within<std::int64_t>(text, 0, kMaxMicroseconds);
}

}  // namespace

void KeepAlive::set(milliseconds timeout, milliseconds interval) {
  timeout_ = timeout;
  interval_ = interval;
}

KeepAlive::TimePoint KeepAlive::quiet_at() const {
  return last_answered_ + std::max(*timeout_ / 2, interval_ + *timeout_ / 8);
}

// The payload is the time of sending, in µs after opened_at_. A clock_pong() adds "@" and the
// rendezvous' clock.
std::string KeepAlive::ping(TimePoint now) const {
  return std::to_string(std::chrono::duration_cast<microseconds>(now - opened_at_).count());
}

KeepAlive::TimePoint KeepAlive::next(TimePoint now) const {
  TimePoint due = now + interval_;
  if (const Clock::duration slot = interval_ / kSlots; ahead_ && slot.count() > 0) {
    due -= (due.time_since_epoch() + *ahead_) % slot;
  }
  return std::max(std::min(due, silent_at()), now + milliseconds(1));
}

std::optional<KeepAlive::Pong> KeepAlive::ponged(std::string_view payload, TimePoint now) {
  const std::size_t mark = payload.find('@');
  const auto sent = number_in(payload.substr(0, mark));
  if (!sent || microseconds(*sent) > now - opened_at_) return std::nullopt;
  const auto at = opened_at_ + microseconds(*sent);
  if (mark != std::string_view::npos) {
    const auto answered = number_in(payload.substr(mark + 1));
    if (!answered) return std::nullopt;
    ahead_ = microseconds(*answered) - (at + (now - at) / 2).time_since_epoch();
    return agent_event::ClockSampled{at, microseconds(*answered), now};
  }
  if (at <= last_answered_) return std::nullopt;
  last_answered_ = at;
  return agent_event::LinkAnswered{at};
}

std::string KeepAlive::clock_pong(std::string_view ping, microseconds clock) {
  if (ping.size() > kLongestPing) return {};
  return std::string(ping).append("@").append(std::to_string(clock.count()));
}

}  // namespace ddprun::membership
