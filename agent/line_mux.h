// SPDX-License-Identifier: Apache-2.0
// Puts the output of several workers together for one stream, line by line, each behind its
// worker's prefix. Pure: bytes in, bytes out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun::agent {

// One worker's side of one stream: the line it hasn't finished yet. Stays where it is from the
// first feed() to end().
struct LineSource {
  std::string prefix;         // "[3] "; may be empty
  bool redraws = false;       // on a terminal its unfinished line is shown and redrawn (rank 0)
  std::string partial;        // bytes after the last newline, not yet passed on
  bool line_is_open = false;  // the begin of the current line was passed on without its end
};

class LineMux {
 public:
  // A line longer than this is passed on in pieces; no memory beyond it is held per source. Pieces
  // stay on one line unless another source's line comes in between: then the line is broken there
  // and goes on behind its prefix.
  static constexpr std::size_t kMaxPartialBytes = 64 * 1024;

  // `terminal`: a carriage return inside a line starts it anew (the last text wins), and a source
  // that `redraws` has its unfinished line (a progress bar, a prompt) kept below all others.
  // Otherwise bytes pass through unchanged.
  explicit LineMux(bool terminal) : terminal_(terminal) {}

  // Takes what a source wrote.
  void feed(LineSource& source, std::string_view bytes);
  // The source has ended: passes on its last line, with a newline if it had none.
  void end(LineSource& source);
  // Bytes as they are, with no prefix and no line rule.
  void raw(std::string_view bytes) { output_.append(bytes); }

  // The end of a batch: what is to be written now. The caller takes it away (swap or clear).
  // `columns`: width of the terminal, 0 = unknown; a progress line is cut to it.
  std::string& finish_batch(int columns);

 private:
  void put_line(LineSource& source, std::string_view tail);
  void put_pieces(LineSource& source, std::string_view bytes);
  void hold(LineSource& source, std::string_view bytes);
  void begin_line(const LineSource& source);
  void hide_progress();

  const bool terminal_;
  std::string output_;
  const LineSource* open_ = nullptr;      // whose unfinished line ends the output, if any
  const LineSource* progress_ = nullptr;  // whose unfinished line is to be shown
  bool progress_shown_ = false;
};

}  // namespace ddprun::agent
