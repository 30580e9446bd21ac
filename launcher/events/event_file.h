// SPDX-License-Identifier: Apache-2.0
// The file of --events: whole lines at its end, one write each. What can't be written is lost and
// counted; the next line that can says how many. For the thread that writes log files.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "agent/output/log_sink.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {

// Opens or makes it to write at its end; nobody waits for a pipe's reader. Invalid: errno says why
// (ENXIO: nobody reads the pipe).
UniqueFd open_event_file(const std::string& path);

struct EventFileOptions {
  // Called again with each line while there is no file; what is wrong goes to `problem`.
  std::function<UniqueFd(std::string& problem)> open;
  // Told once, of the first line that isn't written: why. May be empty.
  std::function<void(const std::string& why)> lost;
  // How long a pipe's reader may take nothing; none for one that has kept a line waiting.
  std::chrono::milliseconds patience{1'000};
};

class EventFile : public agent::LogSink {
 public:
  explicit EventFile(EventFileOptions options) : options_(std::move(options)) {}

  // Whole lines, each with its "\n". One that is a number: so many lines are missing there.
  void write(std::string_view lines) override;

 private:
  void write_line(std::string_view line);
  std::string write_out(std::string_view& text);

  const EventFileOptions options_;
  UniqueFd fd_;
  std::string rest_;            // of a line that has begun in the file
  std::uint64_t num_lost_ = 0;  // since the last line that was written
  bool is_in_trouble_ = false;  // the last line wasn't written, or not all of it
  bool has_told_ = false;       // `lost` was called
};

}  // namespace ddprun::launcher
