// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/heartbeat.h"

namespace ddprun::launcher {

namespace {
constexpr int kBeatsInPatience = 3;
}  // namespace

void Heartbeat::expect(std::chrono::milliseconds patience, Clock::time_point now) {
  patience_ = patience;
  beat_at_.reset();
  if (beats_ && patience_.count() > 0) beat_at_ = now;
  heard(now);
}

void Heartbeat::heard(Clock::time_point now) {
  silent_at_.reset();
  if (patience_.count() > 0 && listens_) silent_at_ = now + patience_;
}

void Heartbeat::listen(bool listens, Clock::time_point now) {
  listens_ = listens;
  heard(now);
}

std::optional<Clock::time_point> Heartbeat::next() const {
  std::optional<Clock::time_point> next = beat_at_;
  keep_earlier(next, silent_at_);
  return next;
}

Heartbeat::Due Heartbeat::step(Clock::time_point now) {
  Due due;
  const auto interval = patience_ / kBeatsInPatience;
  const auto asked_for = next();
  if (asked_for && now - *asked_for > interval) heard(now);
  if (beat_at_ && *beat_at_ <= now) {
    due.beat = true;
    beat_at_ = now + interval;
  }
  due.silent = silent_at_ && *silent_at_ <= now;
  return due;
}

}  // namespace ddprun::launcher
