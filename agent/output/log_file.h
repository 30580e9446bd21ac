// SPDX-License-Identifier: Apache-2.0
// One log file that we write: appended to, rotated where its size is bounded, never an obstacle to
// the worker but by its own slowness. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "agent/output/log_sink.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

struct LogFileOptions {
  std::uint64_t max_bytes = 0;  // 0: no limit
  int keep = 1;                 // older parts that stay: NAME.1 is the youngest
  // Told of what could not be written, each time. May be empty.
  std::function<void(const std::string& path, int error_number, std::size_t num_bytes)> lost;
};

class LogFile : public LogSink {
 public:
  // Makes the file, empty. Where that fails every write tries again.
  LogFile(std::string path, LogFileOptions options);

  // Writes all of it, or tells `lost` how much wasn't. A bounded file is cut behind a newline where
  // there is one in `bytes`, and exceeds its bound by no more than the end of a line within them.
  void write(std::string_view bytes) override;

  const std::string& path() const { return path_; }

 private:
  bool open(int flags);
  void write_now(std::string_view bytes);
  void rotate();

  const std::string path_;
  const LogFileOptions options_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
};

// Opens `path` for a worker that writes to it itself. Invalid: errno says why.
UniqueFd open_log_file(const std::string& path);

}  // namespace ddprun::agent
