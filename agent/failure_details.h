// SPDX-License-Identifier: Apache-2.0
// Facts about a failed worker beyond its exit status: its error file, its log files, and whether
// memory ran out. io thread only.
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
#include "agent/socket_lines.h"
#include "common/cgroup_limits.h"
#include "common/clock.h"
#include "common/operation_facts.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

// Parses "oom_kill 3" in a memory.events, memory.oom_control or /proc/vmstat; nullopt: it isn't
// there.
std::optional<std::uint64_t> oom_kills(std::string_view text);

// Tells whether the kernel's OOM killer was at work while a round's workers ran. The kernel counts
// its kills, for the workers' memory cgroup and for the whole host. The counts are read when a
// round begins and when a worker has failed. Without such evidence nothing is said.
class MemoryKills {
 public:
  // `root` stands before /proc and /sys; a test gives its directory.
  explicit MemoryKills(std::string root = "");

  // Called before any worker of the round runs.
  void begin_round();
  // `pids` are by local rank. The workers may be in a cgroup that their warden has made below this
  // process' cgroup. The warden's cgroup counts its own kills. It is used if this process is in the
  // root cgroup, which has no count.
  void workers_run(const std::vector<pid_t>& pids);

  // Explains the failure of a worker by this signal (0: it exited). "ran out: …": SIGKILL ended it,
  // and its cgroup's count has grown. "perhaps ran out: …": another process than the worker was
  // killed there, or only the host's count is known. Empty: there is no explanation. One kill
  // explains one death by SIGKILL.
  std::string explain(int signal_number);

 private:
  struct Count {
    std::string file;
    std::uint64_t killed = 0;  // at the round's begin, plus those that have explained a death since
  };

  std::string text_of(const std::string& path) const;  // empty where it can't be read
  std::optional<std::uint64_t> read_kills(const std::string& path) const;
  std::optional<Count> count_of(const MemoryCgroup& cgroup) const;
  std::optional<std::uint64_t> limit() const;

  const CgroupTree tree_;
  std::string mountinfo_;               // read once
  std::optional<MemoryCgroup> cgroup_;  // this process' own, or the workers'
  std::optional<Count> own_;            // nullopt: the cgroup's count can't be read
  std::optional<Count> hosts_;          // the host's; read only where there is no other
};

class LogWriter;

struct WorkerError {
  std::string message;                 // "RuntimeError: boom"; empty: nothing was left
  std::vector<std::string> traceback;  // its lines, the first and the last 23 at most
  // Fields that the program's own ErrorHandler added: the file's object as text, without the fields
  // above, time and code. Empty: there are none, or they exceed membership::kMaxErrorFieldsBytes.
  std::string fields;
};

// Parses an error file. The result is empty unless @record wrote the file. Pure.
WorkerError parse_error_file(std::string_view json);

// Returns the path of a worker's error file: in the round's directory of the log tree, else in that
// of the workers' socket. An empty argument means that there is no such directory; without both the
// path is empty. Only a worker makes the file, and whoever made the directory removes it.
std::string worker_error_file(const std::string& log_directory, const std::string& socket_directory,
                              int local_rank);

// Describes a failed operation: which ranks never came, which waited, and for how long.
std::string failed_operation_text(const OperationFailed& failed);

// Whether all ranks of the job are to write their flight recorders: a deadline expired, or the
// ranks called different operations. If a peer was only lost, the round ends without them.
bool is_worth_recording(const OperationFailed& failed);

// Describes where a worker was that ended without a report, from its progress page. Examples: "it
// was in … for 0.2 s", "it was in none; the last one that ended was #126 of communicator 0". Empty:
// it had begun no operation.
std::string whereabouts_text(const std::vector<CommunicatorState>& communicators,
                             Clock::time_point now);

class FailureDetails {
 public:
  // `writer` reads the log directory's files, so that a file system that hangs holds up nobody. It
  // outlives this; null: there is none.
  explicit FailureDetails(int num_workers, LogWriter* writer = nullptr)
      : num_workers_(num_workers), writer_(writer) {}

  // Called before the round's workers run, or with their place where they were prewarmed. The
  // directories are those of worker_error_file(). `cgroup` is the workers'; null: they have none of
  // their own.
  void begin_round(std::uint64_t round, const std::string& log_directory,
                   const std::string& directory, std::shared_ptr<const RoundCgroup> cgroup);
  // Called when the workers go on in place.
  void go_on(std::uint64_t round);
  void workers_run(const std::vector<pid_t>& pids) { memory_kills_.workers_run(pids); }

  // Empty: the worker has no error file.
  std::string error_file(std::uint64_t round, int local_rank) const;
  // Returns the file's content. Empty if it can't be read, or if the file system doesn't answer.
  WorkerError read_error(std::uint64_t round, int local_rank) const;

  // Called when a worker has reported a failed operation; its first report counts.
  void operation_failed(int local_rank, const OperationFailed& failed);
  // Called when its flight recorder is written to `file`; empty: it could not be written.
  void recorded(int local_rank, const std::string& file) { records_[local_rank] = file; }
  // The files of the round's flight recorders that stay when it is over, by local rank.
  std::vector<std::string> flight_recorders() const;

  // Must be called at once: the private error file goes with the round. `communicators` are those
  // of its progress page.
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
  std::string directory_;  // removed with the round; empty: there is none
  // Both are of the current round, by local rank.
  std::map<int, OperationFailed> failed_operations_;
  std::map<int, std::string> records_;

  bool stays(const std::string& file) const;
  void add_memory(membership::WorkerFailure& failure);
  std::string pids_note(const membership::WorkerFailure& failure) const;
};

}  // namespace ddprun::agent
