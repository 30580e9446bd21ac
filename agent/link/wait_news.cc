// SPDX-License-Identifier: Apache-2.0
#include "agent/link/wait_news.h"

#include <utility>

#include "common/text.h"

namespace ddprun::membership {

std::optional<std::string> WaitNews::hear(const Waiting& waiting, Clock::time_point now) {
  std::string text = waiting.note;
  if (text.empty()) {
    text =
        concat("waiting for nodes: ", waiting.have_nodes, " of ", waiting.need_nodes, " are here");
  }
  if (!is_news(text)) return std::nullopt;
  // Nodes that come within moments of each other are no news.
  const bool counts = waiting.need_nodes > 0;
  if (!counts || !patience_until_ || now >= *patience_until_) return text;
  held_back_ = std::move(text);
  return std::nullopt;
}

std::optional<std::string> WaitNews::take_due(Clock::time_point now) {
  if (held_back_.empty() || !patience_until_ || now < *patience_until_) return std::nullopt;
  return std::exchange(held_back_, {});
}

std::optional<Clock::time_point> WaitNews::due() const {
  return held_back_.empty() ? std::nullopt : patience_until_;
}

bool WaitNews::is_news(const std::string& text) {
  if (text == last_) return false;
  last_ = text;
  return true;
}

void WaitNews::round_started() {
  held_back_.clear();
  patience_until_.reset();
}

}  // namespace ddprun::membership
