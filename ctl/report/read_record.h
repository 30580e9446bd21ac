// SPDX-License-Identifier: Apache-2.0
// Finds and reads the files of a job's record. Blocking.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/report/record.h"

namespace ddprun::report {

// Reads the job's record. `paths` has files and directories. A directory stands for its *.json and
// *.jsonl, and for the events.*.jsonl of its subdirectories (those of --log-dir). `job` names the
// job; empty: the only one. Throws Error(kInvalidArgument) if that job has no record, if there are
// several jobs and none is named, or if a file can't be read. Error(kSystem) names a file that
// fails while it is read.
Record read_record(const std::vector<std::string>& paths, const std::string& job);

// The longest line that is read. ddprun's own longest, a verdict with its ledger, has less than 100
// KiB.
inline constexpr std::size_t kMostLineBytes = std::size_t{1} << 20;

// Makes lines from the pieces in which a file is read. Pure.
class LineSplitter {
 public:
  // Calls `take` with each line, without its end. A line longer than kMostLineBytes is cut there,
  // so it isn't JSON any more.
  explicit LineSplitter(std::function<void(std::string_view)> take) : take_(std::move(take)) {}

  void add(std::string_view piece);
  // Called at the end of the file: takes a last line that has no end.
  void end();

 private:
  void keep(std::string_view part);

  const std::function<void(std::string_view)> take_;
  std::string begun_;  // the beginning of a line whose end has not come
};

}  // namespace ddprun::report
