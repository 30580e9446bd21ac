// SPDX-License-Identifier: Apache-2.0
// Decides which waits of a node its user is told of, and when. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/text.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

class WaitNews {
 public:
  // Called when the first wait begins. If it is over within kPatience, the user isn't told.
  void begin(Clock::time_point now) { patience_until_ = now + kPatience; }

  // Returns the line to tell now; nullopt: there is nothing new, or it is not time yet.
  std::optional<std::string> hear(const Waiting& waiting, Clock::time_point now) {
    std::string text = waiting.note;
    if (text.empty()) {
      text = concat("waiting for nodes: ", waiting.have_nodes, " of ", waiting.need_nodes,
                    " are here");
    }
    if (!is_news(text)) return std::nullopt;
    // Single nodes that come shortly after each other are not worth a line.
    const bool counts = waiting.need_nodes > 0;
    if (!counts || !patience_until_ || now >= *patience_until_) return text;
    held_back_ = std::move(text);
    return std::nullopt;
  }
  // Returns the line that is due at due().
  std::optional<std::string> take_due(Clock::time_point now) {
    if (held_back_.empty() || !patience_until_ || now < *patience_until_) return std::nullopt;
    return std::exchange(held_back_, {});
  }
  std::optional<Clock::time_point> due() const {
    return held_back_.empty() ? std::nullopt : patience_until_;
  }
  // Whether `text` differs from the line that was told last. It counts as told from now on.
  bool is_news(const std::string& text) {
    if (text == last_) return false;
    last_ = text;
    return true;
  }

  // Called when a round starts. From then on each new wait is told at once.
  void round_started() {
    held_back_.clear();
    patience_until_.reset();
  }
  // Drops the line that is not told yet.
  void forget() { held_back_.clear(); }

 private:
  static constexpr std::chrono::milliseconds kPatience{2'000};

  std::string last_;
  std::string held_back_;  // until patience_until_
  std::optional<Clock::time_point> patience_until_;
};

}  // namespace ddprun::membership
