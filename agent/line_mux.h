// SPDX-License-Identifier: Apache-2.0
// Puts the output of several workers together for one stream, line by line, each behind its
// worker's prefix. Pure: bytes and times in, bytes out.
//
// An unfinished line is held until its newline comes. A line that grows too long to be held is
// passed on as it comes, and its source *owns* the output. The others' lines wait meanwhile, in
// bounded memory. So a line of any length stays whole. docs/output.md has the limits of these
// waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"

namespace ddprun::agent {

// One worker's side of one stream: the line that it hasn't finished yet. Must not move in memory
// from the first feed() to end().
struct LineSource {
  std::string prefix;         // "[3] "; may be empty
  bool redraws = false;       // on a terminal its unfinished line is shown and redrawn
  bool urgent = false;        // ddprun's own: waits only briefly for a long line, is never dropped
  std::string held;           // bytes that were not passed on yet
  bool line_is_open = false;  // the beginning of the current line was passed on, its end was not
  bool waits = false;         // waits for another's long line: `held` may have whole lines, too
  Clock::time_point held_since{};
};

// Returns the length of the escape sequence (ESC [ … letter) that begins at `at`; 0: none.
std::size_t escape_length(std::string_view text, std::size_t at);

class LineMux {
 public:
  static constexpr std::size_t kMaxHeldBytes = 64 * 1024;
  // Without a terminal, an unfinished line (a progress bar, a prompt) is passed on after this time.
  // After that another's line may break it; its rest then goes on behind its prefix.
  static constexpr std::chrono::milliseconds kHoldTime{1'000};
  // A long line that others wait for is broken when its source has been silent for kOwnerSilence,
  // or when others have waited for kOwnerLimit. An urgent line waits for kUrgentLimit at most.
  static constexpr std::chrono::milliseconds kOwnerSilence{1'000};
  static constexpr std::chrono::milliseconds kOwnerLimit{10'000};
  static constexpr std::chrono::milliseconds kUrgentLimit{200};
  static constexpr std::chrono::milliseconds kLate{500};

  // `terminal`: a carriage return inside a line starts it anew (the last text wins). A source that
  // `redraws` has its unfinished line kept below all others. Otherwise bytes pass unchanged.
  explicit LineMux(bool terminal) : terminal_(terminal) {}
  LineMux(const LineMux&) = delete;
  LineMux& operator=(const LineMux&) = delete;

  // Takes what a source wrote.
  void feed(LineSource& source, std::string_view bytes, Clock::time_point now);
  // Called when the source has ended: passes on its last line, with a newline if it had none. If
  // another's long line is in the way, the last line follows in its turn.
  void end(LineSource& source, Clock::time_point now);
  // Passes on the bytes as they are, without prefix and line rules.
  void raw(std::string_view bytes);

  // Whether `source` waits for another's long line and has enough bytes waiting: don't feed more.
  bool must_wait(const LineSource& source) const {
    return owner_ != nullptr && owner_ != &source && source.held.size() >= kMaxHeldBytes;
  }
  // Returns when wake() is due: a line has been held, or has kept others waiting, for long enough.
  // If wake() comes late, this process stood still and read nobody. Then all get their whole time
  // again, as after postpone().
  std::optional<Clock::time_point> wake_at() const;
  void wake(Clock::time_point now);
  // Called when no worker was read until now, because there was no room: their silence doesn't
  // count.
  void postpone(Clock::time_point now);
  // Whether a long line has ended or was broken since the last call: must_wait() may have changed.
  bool take_released() { return std::exchange(released_, false); }

  // While it is on, whole lines are left out and counted; urgent lines are not.
  void set_dropping(bool dropping) { dropping_ = dropping; }
  std::uint64_t num_dropped_lines() const { return num_dropped_lines_; }
  std::uint64_t num_dropped_bytes() const { return num_dropped_bytes_; }

  // Ends a batch and returns what is to be written now. The caller takes it away (swap or clear).
  // `columns` is the terminal's width, to which a progress line is cut; 0: unknown.
  std::string& finish_batch(int columns);

 private:
  void take(LineSource& source, std::string_view bytes, Clock::time_point now);
  void wait(LineSource& source, std::string_view bytes, Clock::time_point now);
  void serve_waiting(Clock::time_point now);
  void finish(LineSource& source);
  Clock::time_point break_at() const;
  void put_line(LineSource& source, std::string_view tail);
  void pass_on(LineSource& source, std::string_view bytes);
  void hold(LineSource& source, std::string_view bytes, Clock::time_point now);
  bool drop(LineSource& source, std::size_t num_bytes, bool whole_line);
  void release() {
    owner_ = nullptr;
    released_ = true;
  }
  void begin_line(const LineSource& source);
  void forget_progress(const LineSource& source);
  void hide_progress();

  const bool terminal_;
  std::string output_;
  const LineSource* open_ = nullptr;  // the source whose unfinished line ends the output, if any
  const LineSource* progress_ = nullptr;  // the source whose unfinished line is to be shown
  bool progress_shown_ = false;
  bool progress_is_whole_ = false;  // it is shown, and not cut to the terminal's width

  const LineSource* owner_ = nullptr;  // the source whose long line goes out now; it is also open_
  bool released_ = false;              // see take_released()
  Clock::time_point owner_active_{};   // when the owner last wrote
  Clock::time_point waiting_since_{};  // since when the first of waiting_ waits
  std::vector<LineSource*> waiting_;   // in the order in which they came
  std::list<LineSource> ended_;        // those of waiting_ whose worker has ended
  std::vector<LineSource*> holding_;   // sources with held bytes; only without a terminal

  bool dropping_ = false;
  std::uint64_t num_dropped_lines_ = 0;
  std::uint64_t num_dropped_bytes_ = 0;
};

}  // namespace ddprun::agent
