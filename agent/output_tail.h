// SPDX-License-Identifier: Apache-2.0
// The last lines that one worker wrote, stdout and stderr together: for the failure report, and for
// who looks at them on the status page. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

class OutputTail {
 public:
  static constexpr std::size_t kNumLines = 64;          // kept
  static constexpr std::size_t kNumReportedLines = 20;  // of a failure report
  static constexpr std::size_t kMaxLineBytes = 1024;    // the rest of a longer line is cut off
  static constexpr std::size_t kNumStreams = 2;

  // `stream` is 0 or 1; each has its own unfinished line.
  void feed(std::size_t stream, std::string_view bytes);

  // Oldest first, at most `most` of kNumLines, an unfinished line included. Made fit for reports
  // and JSON: valid UTF-8, of a line with carriage returns the last text, no control characters
  // and none that hide or turn text (these, escape sequences and bytes that are no text are
  // replaced), at most kMaxLineBytes and a mark.
  std::vector<std::string> lines(std::size_t most = kNumReportedLines) const;

 private:
  void add_line(std::string_view first, std::string_view rest);
  static void append_bounded(std::string& to, std::string_view bytes);

  std::array<std::string, kNumLines> ring_;  // strings are reused: no allocation per line
  std::size_t num_added_ = 0;
  std::array<std::string, kNumStreams> partial_;
};

// One line as OutputTail::lines() shows it.
std::string printable_line(std::string_view line);

}  // namespace ddprun::agent
