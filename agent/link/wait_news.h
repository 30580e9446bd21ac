// SPDX-License-Identifier: Apache-2.0
// Which waits of a node are told to its user, and when. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "common/clock.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

class WaitNews {
 public:
  // The first wait begins: one that is over within kPatience is not worth a line.
  void begin(Clock::time_point now) { patience_until_ = now + kPatience; }

  // The line that is to be told now; nullopt: nothing new, or not yet.
  std::optional<std::string> hear(const Waiting& waiting, Clock::time_point now);
  // The line that is due, at due().
  std::optional<std::string> take_due(Clock::time_point now);
  std::optional<Clock::time_point> due() const;
  // Whether `text` differs from what was told last; it is that from now on.
  bool is_news(const std::string& text);

  // A round starts. From then on each wait is news.
  void round_started();
  // Nothing that waits is told any more.
  void forget() { held_back_.clear(); }

 private:
  static constexpr std::chrono::milliseconds kPatience{2'000};

  std::string last_;
  std::string held_back_;  // until patience_until_
  std::optional<Clock::time_point> patience_until_;
};

}  // namespace ddprun::membership
