// SPDX-License-Identifier: Apache-2.0
#include "agent/line_mux.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

// What a terminal would show of an unfinished or finished line: the text after the last carriage
// return that has text after it. Trailing carriage returns and the newline are kept off.
std::string_view visible_text(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  const auto carriage_return = line.rfind('\r');
  if (carriage_return != std::string_view::npos) line.remove_prefix(carriage_return + 1);
  return line;
}

// At most `columns` characters (UTF-8 code points) of `text`.
std::string_view cut_to_width(std::string_view text, std::size_t columns) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts_character = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (starts_character && width++ == columns) return text.substr(0, i);
  }
  return text;
}

}  // namespace

void LineMux::feed(LineSource& source, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto newline = bytes.find('\n');
    if (newline == std::string_view::npos) return hold(source, bytes);
    put_line(source, bytes.substr(0, newline + 1));
    bytes.remove_prefix(newline + 1);
  }
}

void LineMux::end(LineSource& source) {
  if (!source.partial.empty() || (source.line_is_open && open_ == &source)) {
    put_line(source, "\n");
  }
  source.line_is_open = false;
  if (open_ == &source) open_ = nullptr;
  if (progress_ == &source) {
    hide_progress();
    progress_ = nullptr;
  }
}

// `tail` ends with the newline.
void LineMux::put_line(LineSource& source, std::string_view tail) {
  if (progress_ == &source) {
    hide_progress();
    progress_ = nullptr;
  }
  if (open_ != &source) begin_line(source);
  const bool has_carriage_return = terminal_ && (source.partial.find('\r') != std::string::npos ||
                                                 tail.find('\r') != std::string_view::npos);
  if (has_carriage_return) {
    source.partial.append(tail);
    output_.append(visible_text(source.partial));
    output_ += '\n';
  } else {
    output_.append(source.partial);
    output_.append(tail);
  }
  source.partial.clear();
  source.line_is_open = false;
  open_ = nullptr;
}

// Keeps `bytes`, which hold no newline, until the line's end comes or it is too long.
void LineMux::hold(LineSource& source, std::string_view bytes) {
  if (source.partial.size() + bytes.size() > kMaxPartialBytes) return put_pieces(source, bytes);
  source.partial.append(bytes);
  if (!terminal_) return;
  const std::string_view visible = visible_text(source.partial);
  // Redrawn text is forgotten, so that hours of a progress bar need no memory.
  const std::size_t begin = static_cast<std::size_t>(visible.data() - source.partial.data());
  if (!visible.empty() && begin > 0) source.partial.erase(0, begin);
  if (source.redraws && !source.line_is_open) {
    hide_progress();
    progress_ = &source;
  }
}

void LineMux::put_pieces(LineSource& source, std::string_view bytes) {
  if (progress_ == &source) {
    hide_progress();
    progress_ = nullptr;
  }
  if (open_ != &source) begin_line(source);
  output_.append(source.partial);
  output_.append(bytes);
  source.partial.clear();
  source.line_is_open = true;
  open_ = &source;
}

void LineMux::begin_line(const LineSource& source) {
  hide_progress();
  if (open_) output_ += '\n';
  open_ = nullptr;
  output_.append(source.prefix);
}

void LineMux::hide_progress() {
  if (progress_shown_) output_.append(kEraseLine);
  progress_shown_ = false;
}

std::string& LineMux::finish_batch(int columns) {
  if (progress_ && !progress_shown_ && !open_) {
    const std::string_view visible = visible_text(progress_->partial);
    std::string line = progress_->prefix;
    line.append(visible);
    const std::size_t width = columns > 1 ? static_cast<std::size_t>(columns - 1) : line.size();
    output_.append(cut_to_width(line, width));
    progress_shown_ = true;
  }
  return output_;
}

}  // namespace ddprun::agent
