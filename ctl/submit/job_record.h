// SPDX-License-Identifier: Apache-2.0
// The record of a job that was submitted from here, beside what its scheduler knows. It is a
// directory PLACE-ID in $XDG_STATE_HOME/ddprun/jobs, for this user only. docs/submit.md has its
// files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/environment.h"
#include "common/wall_time.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

struct JobRecord {
  std::string id, name;  // with the place: "slurm:4711"
  std::string host;      // where it was submitted
  WallTime submitted{};
  std::string log, exit_file;  // paths
  std::vector<std::string> nodes, command;
};

// A process that may have been followed by another one of the same number.
struct RecordedProcess {
  int pid = 0;
  std::uint64_t start_ticks = 0;
  std::string boot_id;

  // One that runs now.
  static RecordedProcess of(int pid);
  // Whether it still runs on this machine. One that ended, and that nobody has reaped, doesn't.
  bool is_alive() const;
  bool is_of_this_boot() const;
};

class JobRecords {
 public:
  // Errors of the calls below, where they throw: Error(kSystem) naming the path.
  explicit JobRecords(const Environment& environment);

  std::filesystem::path directory_of(const std::string& id) const;

  // Makes the directory, and job.json in it, whole or not at all. Throws.
  void add(const JobRecord& record) const;
  // nullopt: none, or it can't be read.
  std::optional<JobRecord> find(const std::string& id) const;
  // Why a record that is there can't be read: one line. Empty: it can, or there is none.
  std::string problem_of(const std::string& id) const;
  // The records of "slurm" or "ssh", the latest first. One that can't be read is left out, with a
  // warning.
  std::vector<JobRecord> all_of(const std::string& place) const;

  // Notes that somebody asked for the job's end. Throws.
  void mark_cancelled(const std::string& id) const;
  bool is_cancelled(const std::string& id) const;

  void add_process(const std::string& id, const RecordedProcess& process) const;  // throws
  std::optional<RecordedProcess> process_of(const std::string& id) const;

 private:
  std::filesystem::path root_;
};

// The file that an exit code is written to before it is renamed to `exit_file`. If it stays, there
// was no room for the code.
std::string unfinished_exit_file(const std::string& exit_file);
// An exit code in its file, and when it was written. nullopt: no file, or it holds no exit code.
struct RecordedExit {
  int code = 0;
  WallTime at{};
};
std::optional<RecordedExit> read_exit_file(const std::string& path);

// Shows what is there of the file `path`; with `follow` also what comes, until `is_over` says that
// no more will. Nothing is shown that comes after the view has ended. A file that isn't there yet
// is empty. Throws Error(kUnavailable) where it can't be read, and, without `follow`, where there
// is none.
void show_log(const std::string& path, bool follow, const LogView& view,
              const std::function<bool()>& is_over);

}  // namespace ddprun::submit
