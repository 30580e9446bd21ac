// SPDX-License-Identifier: Apache-2.0
#include "agent/line_mux.h"

#include <algorithm>

namespace ddprun::agent {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr std::string_view kPlainText = "\x1b[0m";

// Returns the part of a line, finished or not, that a terminal would show: the text after the last
// carriage return that has text after it. Trailing carriage returns and the newline are left out.
std::string_view visible_text(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  const auto carriage_return = line.rfind('\r');
  if (carriage_return != std::string_view::npos) line.remove_prefix(carriage_return + 1);
  return line;
}

// Cuts `text` to `columns` characters (UTF-8 code points; escape sequences have no width).
std::string cut_to_width(const std::string& text, std::size_t columns) {
  std::size_t width = 0;
  bool has_escape = false;
  for (std::size_t i = 0; i < text.size();) {
    if (const std::size_t escape = escape_length(text, i); escape > 0) {
      has_escape = true;
      i += escape;
      continue;
    }
    const bool starts_character = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (starts_character && width++ == columns) {
      return text.substr(0, i).append(has_escape ? kPlainText : "");
    }
    ++i;
  }
  return text;
}

void remove_from(std::vector<LineSource*>& list, const LineSource* source) {
  list.erase(std::remove(list.begin(), list.end(), source), list.end());
}

}  // namespace

std::size_t escape_length(std::string_view text, std::size_t at) {
  if (text.substr(at, 2) != "\x1b[") return 0;
  for (std::size_t i = at + 2; i < text.size(); ++i) {
    if (text[i] >= 0x40 && text[i] <= 0x7E) return i + 1 - at;
  }
  return text.size() - at;
}

void LineMux::feed(LineSource& source, std::string_view bytes, Clock::time_point now) {
  if (bytes.empty()) return;
  if (owner_ && owner_ != &source) wake(now);  // the owner's time may be over
  if (owner_ && owner_ != &source) return wait(source, bytes, now);
  take(source, bytes, now);
  if (!waiting_.empty()) serve_waiting(now);
}

void LineMux::take(LineSource& source, std::string_view bytes, Clock::time_point now) {
  for (bool is_first = true; !bytes.empty(); is_first = false) {
    const auto newline = bytes.find('\n');
    if (newline == std::string_view::npos) return hold(source, bytes, now);
    if (is_first || terminal_ || dropping_) {
      put_line(source, bytes.substr(0, newline + 1));
    } else {  // after the first put_line() nothing is held, open or owned
      output_.append(source.prefix).append(bytes.data(), newline + 1);
    }
    bytes.remove_prefix(newline + 1);
  }
}

void LineMux::wait(LineSource& source, std::string_view bytes, Clock::time_point now) {
  source.held.append(bytes);
  if (std::exchange(source.waits, true)) return;
  remove_from(holding_, &source);
  forget_progress(source);
  if (waiting_.empty()) waiting_since_ = now;
  waiting_.push_back(&source);
}

void LineMux::serve_waiting(Clock::time_point now) {
  while (!owner_ && !waiting_.empty()) {
    LineSource& source = *waiting_.front();
    waiting_.erase(waiting_.begin());
    waiting_since_ = now;
    source.waits = false;
    const std::string backlog = std::exchange(source.held, {});
    take(source, backlog, now);
    const auto ended = std::find_if(ended_.begin(), ended_.end(),
                                    [&](const LineSource& each) { return &each == &source; });
    if (ended == ended_.end()) continue;
    finish(*ended);
    ended_.erase(ended);
  }
}

void LineMux::end(LineSource& source, Clock::time_point now) {
  if (source.waits) {
    LineSource& rest = ended_.emplace_back(std::move(source));
    std::replace(waiting_.begin(), waiting_.end(), &source, &rest);
    if (open_ == &source) open_ = &rest;
    source.waits = source.line_is_open = false;
    source.held.clear();
    return;
  }
  finish(source);
  serve_waiting(now);
}

void LineMux::finish(LineSource& source) {
  if (!source.held.empty() || (source.line_is_open && open_ == &source)) put_line(source, "\n");
  source.line_is_open = false;
  if (open_ == &source) open_ = nullptr;
  if (owner_ == &source) release();
  forget_progress(source);
}

void LineMux::raw(std::string_view bytes) {
  if (dropping_) {
    num_dropped_bytes_ += bytes.size();
    num_dropped_lines_ += static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  } else {
    output_.append(bytes);
  }
}

Clock::time_point LineMux::break_at() const {
  const bool is_urgent = std::any_of(waiting_.begin(), waiting_.end(),
                                     [](const LineSource* source) { return source->urgent; });
  return std::min(std::max(owner_active_, waiting_since_ - kOwnerSilence) + kOwnerSilence,
                  waiting_since_ + (is_urgent ? kUrgentLimit : kOwnerLimit));
}

std::optional<Clock::time_point> LineMux::wake_at() const {
  std::optional<Clock::time_point> at;
  if (owner_ && !waiting_.empty()) at = break_at();
  for (const LineSource* source : holding_) {
    const Clock::time_point due = source->held_since + kHoldTime;
    if (!owner_ && (!at || due < *at)) at = due;
  }
  return at;
}

void LineMux::postpone(Clock::time_point now) {
  owner_active_ = waiting_since_ = now;
  for (LineSource* source : holding_) source->held_since = now;
}

void LineMux::wake(Clock::time_point now) {
  if (const auto due = wake_at(); due && now > *due + kLate) return postpone(now);
  if (owner_) {
    if (waiting_.empty() || now < break_at()) return;
    release();  // its line stays open_: the next line of another source breaks it
    serve_waiting(now);
    return;
  }
  const std::vector<LineSource*> holding = holding_;
  for (LineSource* source : holding) {
    if (now >= source->held_since + kHoldTime) pass_on(*source, {});
  }
}

// Drops a line, or a part of it, while dropping is on. False: it is to be passed on. Ends a line
// whose beginning was passed on, so that the next one doesn't look like its rest.
bool LineMux::drop(LineSource& source, std::size_t num_bytes, bool whole_line) {
  if (!dropping_ || source.urgent) return false;
  num_dropped_bytes_ += source.held.size() + num_bytes;
  num_dropped_lines_ += whole_line ? 1 : 0;
  if (open_ == &source) {
    output_ += '\n';
    open_ = nullptr;
  }
  return true;
}

// `tail` ends with the newline.
void LineMux::put_line(LineSource& source, std::string_view tail) {
  // The user's answer to a prompt ended the terminal's line. If the prompt were drawn again, it
  // would be there twice.
  const bool goes_on = progress_ == &source && progress_shown_ && progress_is_whole_ &&
                       source.held.find('\r') == std::string::npos &&
                       tail.find('\r') == std::string_view::npos;
  if (goes_on) {
    progress_ = nullptr;
    progress_shown_ = false;
    source.held.clear();
    open_ = &source;
  }
  if (terminal_) forget_progress(source);
  if (!drop(source, tail.size(), true)) {
    if (open_ != &source) begin_line(source);
    const bool has_carriage_return = terminal_ && (source.held.find('\r') != std::string::npos ||
                                                   tail.find('\r') != std::string_view::npos);
    if (has_carriage_return) {
      source.held.append(tail);
      output_.append(visible_text(source.held));
      output_ += '\n';
    } else {
      output_.append(source.held);
      output_.append(tail);
    }
    open_ = nullptr;
  }
  source.line_is_open = false;
  if (owner_ == &source) release();
  if (source.held.empty()) return;
  source.held.clear();
  if (!terminal_) remove_from(holding_, &source);
}

// Keeps `bytes`, which have no newline, until the line's end comes or the line is too long.
void LineMux::hold(LineSource& source, std::string_view bytes, Clock::time_point now) {
  const bool is_long = source.held.size() + bytes.size() > kMaxHeldBytes;
  if (is_long || owner_ == &source || open_ == &source) {
    pass_on(source, bytes);
    if (is_long) owner_ = &source;
    if (owner_ == &source) owner_active_ = now;
    return;
  }
  if (source.held.empty()) {
    source.held_since = now;
    if (!terminal_) holding_.push_back(&source);
  }
  source.held.append(bytes);
  if (!terminal_) return;
  const std::string_view visible = visible_text(source.held);
  // Redrawn text is forgotten, so that hours of a progress bar need no memory.
  const std::size_t begin = static_cast<std::size_t>(visible.data() - source.held.data());
  if (!visible.empty() && begin > 0) source.held.erase(0, begin);
  if (source.redraws && !source.line_is_open) {
    hide_progress();
    progress_ = &source;
  }
}

// Passes on what is there of a line without its end.
void LineMux::pass_on(LineSource& source, std::string_view bytes) {
  forget_progress(source);
  if (!drop(source, bytes.size(), false)) {
    if (open_ != &source) begin_line(source);
    output_.append(source.held);
    output_.append(bytes);
    open_ = &source;
  }
  source.held.clear();
  remove_from(holding_, &source);
  source.line_is_open = true;
}

void LineMux::begin_line(const LineSource& source) {
  hide_progress();
  if (open_) output_ += '\n';
  open_ = nullptr;
  output_.append(source.prefix);
}

void LineMux::forget_progress(const LineSource& source) {
  if (progress_ != &source) return;
  hide_progress();
  progress_ = nullptr;
}

void LineMux::hide_progress() {
  if (progress_shown_) output_.append(kEraseLine);
  progress_shown_ = false;
}

std::string& LineMux::finish_batch(int columns) {
  if (progress_ && !progress_shown_ && !open_) {
    const std::string line = progress_->prefix + std::string(visible_text(progress_->held));
    const std::size_t width = columns > 1 ? static_cast<std::size_t>(columns - 1) : line.size();
    const std::string shown = cut_to_width(line, width);
    output_.append(shown);
    progress_shown_ = true;
    progress_is_whole_ = shown.size() == line.size();
  }
  return output_;
}

}  // namespace ddprun::agent
