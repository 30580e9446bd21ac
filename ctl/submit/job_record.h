// SPDX-License-Identifier: Apache-2.0
// The record of a job that was submitted from this machine, in addition to what its scheduler
// knows. It is a directory PLACE-ID in $XDG_STATE_HOME/ddprun/jobs, only for this user.
// docs/submit.md has its files.
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
  std::string id, name;  // id: with the place, "slurm:4711"
  std::string host;      // where it was submitted from
  WallTime submitted{};
  std::string log, exit_file;  // paths
  std::vector<std::string> nodes, command;
};

// Identifies a process, even if another process got its number later.
struct RecordedProcess {
  int pid = 0;
  std::uint64_t start_ticks = 0;
  std::string boot_id;

  // Returns the identity of a process that runs now.
  static RecordedProcess of(int pid);
  // Whether it still runs on this machine. A process that ended and isn't reaped doesn't.
  bool is_alive() const;
  bool is_of_this_boot() const;
};

class JobRecords {
 public:
  // If a function below throws, it is Error(kSystem), which names the path.
  explicit JobRecords(const Environment& environment);

  std::filesystem::path directory_of(const std::string& id) const;

  // Makes the directory with job.json in it, whole or not at all. Throws.
  void add(const JobRecord& record) const;
  // nullopt: there is no record, or it can't be read.
  std::optional<JobRecord> find(const std::string& id) const;
  // Returns why an existing record can't be read, one line. Empty: it can, or there is none.
  std::string problem_of(const std::string& id) const;
  // Returns the records of "slurm" or "ssh", the latest first. Leaves out one that can't be read,
  // with a warning.
  std::vector<JobRecord> all_of(const std::string& place) const;

  // Records that somebody asked for the job's end. Throws.
  void mark_cancelled(const std::string& id) const;
  bool is_cancelled(const std::string& id) const;

  void add_process(const std::string& id, const RecordedProcess& process) const;  // throws
  std::optional<RecordedProcess> process_of(const std::string& id) const;

 private:
  std::filesystem::path root_;
};

// Returns the name of the file that a job over ssh writes its exit code to, before it is renamed to
// `exit_file`. If it still exists later, there was no room for the code.
std::string unfinished_exit_file(const std::string& exit_file);
// An exit code, and when its file was written. read_exit_file() returns nullopt if there is no such
// file, or no exit code in it.
struct RecordedExit {
  int code = 0;
  WallTime at{};
};
std::optional<RecordedExit> read_exit_file(const std::string& path);

// Shows what the file `path` has; with `follow` also what is added later, until `is_over` says that
// no more will come. Shows nothing after the view has ended. A file that doesn't exist yet counts
// as empty. Throws Error(kUnavailable) if it can't be read, or, without `follow`, doesn't exist.
void show_log(const std::string& path, bool follow, const LogView& view,
              const std::function<bool()>& is_over);

}  // namespace ddprun::submit
