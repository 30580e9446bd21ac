// SPDX-License-Identifier: Apache-2.0
// Puts the output of several workers together for one stream, line by line, each behind its
// worker's prefix. Pure: bytes in, bytes out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun::agent {

// One worker's side of one stream: the line it hasn't finished yet.
struct LineSource {
  std::string prefix;         // "[3] "; may be empty
  bool redraws = false;       // its carriage returns redraw a line of the terminal (rank 0)
  std::string partial;        // bytes after the last newline, not yet passed on
  bool line_is_open = false;  // the begin of the current line was passed on without its end
};

class LineMux {
 public:
  // A line longer than this is passed on in pieces; no memory beyond it is held per source. Pieces
  // stay on one line unless another source's line comes in between: then the line is broken there
  // and goes on behind its prefix.
  static constexpr std::size_t kMaxPartialBytes = 64 * 1024;

  // `terminal`: carriage returns inside a line are acted on (the last text wins; a source with
  // `redraws` has its progress line kept at the bottom). Otherwise bytes pass through unchanged.
  explicit LineMux(bool terminal) : terminal_(terminal) {}

  // Takes what a source wrote.
  void feed(LineSource& source, std::string_view bytes);
  // The source has ended: passes on its last line, with a newline if it had none.
  void end(LineSource& source);
  // Bytes as they are, with no prefix and no line rule.
  void raw(std::string_view bytes);

  // What is to be written now; the caller takes it away (swap or clear).
  std::string& output();

 private:
  void put_line(LineSource& source, std::string_view tail);
  void put_piece(LineSource& source, std::string_view bytes);
  void begin_line(LineSource& source);
  void hide_progress();
  void show_progress();

  const bool terminal_;
  std::string output_;
  const LineSource* open_ = nullptr;  // whose unfinished line ends output_, if any
  std::string progress_;              // rank 0's progress text with prefix; empty: none
  bool progress_shown_ = false;
};

}  // namespace ddprun::agent
