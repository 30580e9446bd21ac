// SPDX-License-Identifier: Apache-2.0
// The lines of one stream that have one of several texts in them. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

class LineFilter {
 public:
  static constexpr std::size_t kMaxLineBytes = 64 * 1024;  // the rest of a longer line is left out

  explicit LineFilter(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  // Appends to `to` each line that matches, behind `prefix`.
  void feed(std::string_view bytes, std::string_view prefix, std::string& to);
  // Likewise the last line, if it had no newline.
  void end(std::string_view prefix, std::string& to);

 private:
  bool matches(std::string_view text) const;
  void hold(std::string_view bytes);

  const std::vector<std::string> texts_;
  std::string held_;  // of the line that isn't over
};

}  // namespace ddprun::agent
