// SPDX-License-Identifier: Apache-2.0
// The files of a job's record, found and read. Blocking.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/report/record.h"

namespace ddprun::report {

// `paths`: files, and directories: each *.json and *.jsonl of one, and the events.*.jsonl of its
// subdirectories (those of --log-dir). `job`: which one, where there are several; empty: the only
// one. Throws Error(kInvalidArgument): there is no record of that job; or there are several and
// none is named; or one can't be read. Error(kSystem) names what fails while it is read.
Record read_record(const std::vector<std::string>& paths, const std::string& job);

// ddprun's longest line, a verdict with its ledger, has less than 100 KiB.
inline constexpr std::size_t kMostLineBytes = std::size_t{1} << 20;

// Lines out of the pieces in which a file is read. Pure.
class LineSplitter {
 public:
  // `take` gets each line without its end. A line longer than kMostLineBytes is cut there, so it is
  // no JSON any more.
  explicit LineSplitter(std::function<void(std::string_view)> take) : take_(std::move(take)) {}

  void add(std::string_view piece);
  // The file is over: what is left is a line that was cut.
  void end();

 private:
  void keep(std::string_view part);

  const std::function<void(std::string_view)> take_;
  std::string begun_;  // of a line whose end has not come
};

}  // namespace ddprun::report
