// SPDX-License-Identifier: Apache-2.0
// The file of --report: there whole, or not at all.
#pragma once

#include <string>

#include "common/unique_fd.h"

namespace ddprun::launcher {

class ReportFile {
 public:
  // `path` as given: "-" is stdout; "${hostname}" in it is this host's name. What exists and is no
  // regular file (a pipe, /dev/fd/3) is written to as it is. Opens nothing.
  explicit ReportFile(std::string path);

  // Whether it could be written now. Returns the problem; empty: none. problem_by_trial() also
  // writes a small file beside it, which is gone again.
  std::string problem() const;
  std::string problem_by_trial() const;

  // An earlier job's report at this path is none of this one: it is removed. A pipe is opened, so
  // that its reader has to wait.
  void begin();

  // Replaces the file in one step: written beside it, synced, renamed. Returns the problem; empty:
  // none. What was there stays where that fails. A pipe's reader has 10 s.
  std::string write(const std::string& text);

  bool is_stdout() const { return path_ == "-"; }
  const std::string& path() const { return path_; }

 private:
  std::string temporary_path() const;
  std::string replace(const std::string& text, const std::string& temporary) const;

  UniqueFd open_direct() const;

  std::string path_;        // absolute, links followed; "-"
  bool is_direct_ = false;  // no regular file
  bool is_fifo_ = false;
  UniqueFd direct_;
};

}  // namespace ddprun::launcher
