// SPDX-License-Identifier: Apache-2.0
#include "agent/output/line_filter.h"

#include <algorithm>

namespace ddprun::agent {

bool LineFilter::matches(std::string_view text) const {
  return std::any_of(texts_.begin(), texts_.end(), [text](const std::string& part) {
    return text.find(part) != std::string_view::npos;
  });
}

void LineFilter::hold(std::string_view bytes) {
  held_.append(bytes.substr(0, kMaxLineBytes - std::min(held_.size(), kMaxLineBytes)));
}

void LineFilter::feed(std::string_view bytes, std::string_view prefix, std::string& to) {
  std::size_t newline = bytes.find('\n');
  if (newline == std::string_view::npos) return hold(bytes);
  if (!held_.empty()) {
    hold(bytes.substr(0, newline));
    end(prefix, to);
    bytes.remove_prefix(newline + 1);
  }
  const std::size_t last = bytes.rfind('\n');
  const std::size_t whole = last == std::string_view::npos ? 0 : last + 1;
  // Most of the time nothing matches: then no line needs to be looked at.
  std::string_view lines = bytes.substr(0, whole);
  if (!matches(lines)) lines = {};
  while (!lines.empty()) {
    newline = lines.find('\n');
    const std::string_view line = lines.substr(0, newline);
    if (matches(line)) to.append(prefix).append(line.substr(0, kMaxLineBytes)) += '\n';
    lines.remove_prefix(newline + 1);
  }
  hold(bytes.substr(whole));
}

void LineFilter::end(std::string_view prefix, std::string& to) {
  if (matches(held_)) to.append(prefix).append(held_) += '\n';
  held_.clear();
}

}  // namespace ddprun::agent
