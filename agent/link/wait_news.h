// SPDX-License-Identifier: Apache-2.0
// Decides which waits of a node its user is told, and when. Pure.
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
  // The first wait begins. If it is over within kPatience, it is not worth a line.
  void begin(Clock::time_point now) { patience_until_ = now + kPatience; }

  // The line that is to be told now; nullopt: nothing new, or not yet.
  std::optional<std::string> hear(const Waiting& waiting, Clock::time_point now) {
    std::string text = waiting.note;
    if (text.empty()) {
      text = concat("waiting for nodes: ", waiting.have_nodes, " of ", waiting.need_nodes,
                    " are here");
    }
    if (!is_news(text)) return std::nullopt;
    // Nodes that come within moments of each other are no news.
    const bool counts = waiting.need_nodes > 0;
    if (!counts || !patience_until_ || now >= *patience_until_) return text;
    held_back_ = std::move(text);
    return std::nullopt;
  }
  // The line that is due, at due().
  std::optional<std::string> take_due(Clock::time_point now) {
    if (held_back_.empty() || !patience_until_ || now < *patience_until_) return std::nullopt;
    return std::exchange(held_back_, {});
  }
  std::optional<Clock::time_point> due() const {
    return held_back_.empty() ? std::nullopt : patience_until_;
  }
  // Whether `text` differs from the text that was told last. Takes it for told from now on.
  bool is_news(const std::string& text) {
    if (text == last_) return false;
    last_ = text;
    return true;
  }

  // A round starts. From then on each wait is news.
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
