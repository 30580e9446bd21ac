// SPDX-License-Identifier: Apache-2.0
// Facts about a failed worker beyond its exit status: its error file, its log files, whether memory
// ran out. io thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/isolation/cgroup_tree.h"
#include "agent/isolation/worker_cgroups.h"
#include "agent/worker_line.h"
#include "common/cgroup_limits.h"
#include "common/clock.h"
#include "common/operation_facts.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

// "oom_kill 3" of a memory.events, memory.oom_control or /proc/vmstat; nullopt: it isn't there.
std::optional<std::uint64_t> oom_kills(std::string_view text);

// Whether the kernel's OOM killer was at work while a round's workers ran. It counts what it kills,
// in the workers' memory cgroup and for the whole host. The counts are read when a round begins and
// when a worker has failed. Without such evidence nothing is said.
class MemoryKills {
 public:
  // `root`: what stands before /proc and /sys; a test's directory.
  explicit MemoryKills(std::string root = "");

  // No worker of it runs yet.
  void begin_round();
  // `pids` by local rank. Workers may be in a cgroup of their warden's below ours. That one counts
  // for itself if ours is the root, which doesn't.
  void workers_run(const std::vector<pid_t>& pids);

  // Explains the failure of a worker by this signal (0: it exited). "ran out: …": SIGKILL ended it,
  // and its cgroup's count has grown. "perhaps ran out: …": another process than the worker was
  // killed there, or only the host's count is known. Empty: no explanation. One kill explains one
  // death by SIGKILL.
  std::string explain(int signal_number);

 private:
  struct Count {
    std::string file;
    std::uint64_t killed = 0;  // when the round began, and those that explained a death since
  };

  std::string text_of(const std::string& path) const;  // empty where it can't be read
  std::optional<std::uint64_t> read_kills(const std::string& path) const;
  std::optional<Count> count_of(const MemoryCgroup& cgroup) const;
  std::optional<std::uint64_t> limit() const;

  const CgroupTree tree_;
  std::string mountinfo_;               // read once
  std::optional<MemoryCgroup> cgroup_;  // ours, or the workers'
  std::optional<Count> own_;            // nullopt: the cgroup's count can't be read
  std::optional<Count> hosts_;          // read only where there is no other
};

class LogWriter;

struct WorkerError {
  std::string message;                 // "RuntimeError: boom"; empty: nothing was left
  std::vector<std::string> traceback;  // its lines, the first and the last 23 at most
  // Fields that an ErrorHandler of the program's own added: the file's object as text, without the
  // fields above, time and code. Empty: none, or more than membership::kMaxErrorFieldsBytes.
  std::string fields;
};

// Parses an error file. The result is empty unless the file is @record's. Pure.
WorkerError parse_error_file(std::string_view json);

// A worker's error file: in the round's directory of the log tree, else in that of the workers'
// socket. An empty directory isn't there; neither: an empty name. None exists unless a worker made
// it, and whoever made the directory removes it.
std::string worker_error_file(const std::string& log_directory, const std::string& socket_directory,
                              int local_rank);

// For a worker that said which operation failed: who never came, who waited, for how long.
std::string failed_operation_text(const OperationFailed& failed);

// Whether all ranks of the job are to write their flight recorders: a deadline expired, or the
// ranks parted. A lost peer alone ends the round without.
bool is_worth_recording(const OperationFailed& failed);

// From the progress page of a worker that ended without a word: "it was in … since 0.2 s" or "after
// collective #126 of communicator 0". Empty: it had begun none.
std::string whereabouts_text(const std::vector<CommunicatorState>& communicators,
                             Clock::time_point now);

class FailureDetails {
 public:
  // `writer` (null: none) looks at the log directory's files, so that nobody waits for a file
  // system that hangs; it outlives this.
  explicit FailureDetails(int num_workers, LogWriter* writer = nullptr)
      : num_workers_(num_workers), writer_(writer) {}

  // Before the round's workers run, or with their place where they were prewarmed. The directories
  // are as worker_error_file() has them. `cgroup`: the workers'; null: none of their own.
  void begin_round(std::uint64_t round, const std::string& log_directory,
                   const std::string& directory, std::shared_ptr<const RoundCgroup> cgroup);
  // The workers go on in place.
  void go_on(std::uint64_t round);
  void workers_run(const std::vector<pid_t>& pids) { memory_kills_.workers_run(pids); }

  // Empty: the worker has none.
  std::string error_file(std::uint64_t round, int local_rank) const;
  // The file's content. Empty if it can't be read, or if the file system doesn't answer.
  WorkerError read_error(std::uint64_t round, int local_rank) const;

  // A worker said so; what it says first counts.
  void operation_failed(int local_rank, const OperationFailed& failed);
  // Its flight recorder is written there; empty: nowhere.
  void recorded(int local_rank, const std::string& file) { records_[local_rank] = file; }
  // The round's flight recorders that stay when it is over, by local rank.
  std::vector<std::string> flight_recorders() const;

  // To be called at once: the private error file goes with the round. `communicators`: what its
  // progress page says.
  void add_to(membership::WorkerFailure& failure, std::uint64_t round,
              const std::vector<CommunicatorState>& communicators);

 private:
  const int num_workers_;
  LogWriter* const writer_;

  std::uint64_t round_ = 0;
  std::vector<std::string> error_files_;  // of the round, by local rank
  MemoryKills memory_kills_;
  std::shared_ptr<const RoundCgroup> cgroup_;  // of the round; shared with its group of workers
  std::string log_directory_;
  std::string directory_;  // goes with the round; empty: there is none
  // Both are of the current round, by local rank.
  std::map<int, OperationFailed> failed_operations_;
  std::map<int, std::string> records_;

  bool stays(const std::string& file) const;
  void add_memory(membership::WorkerFailure& failure);
  std::string pids_note(const membership::WorkerFailure& failure) const;
};

}  // namespace ddprun::agent
