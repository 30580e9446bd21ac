// SPDX-License-Identifier: Apache-2.0
// What a node knows of a worker that failed, beside how it ended: what it left in its error file,
// where its log files are, whether memory ran out. io thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/error_files.h"
#include "agent/isolation/round_cgroup.h"
#include "agent/memory_kills.h"
#include "agent/worker_line.h"
#include "common/operation_facts.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::agent {

class FailureDetails {
 public:
  // `writer` (null: none) looks at the log directory's files, so that nobody waits for a file
  // system that hangs; it outlives this.
  explicit FailureDetails(int num_workers, LogWriter* writer = nullptr)
      : error_files_(num_workers, writer), writer_(writer) {}

  // Before the round's workers run, or with their place where they were prewarmed. The directories
  // are as worker_error_file() has them. `cgroup`: the workers'; null: none of their own.
  void begin_round(std::uint64_t round, const std::string& log_directory,
                   const std::string& directory, std::shared_ptr<const RoundCgroup> cgroup);
  // The workers go on in place.
  void go_on(std::uint64_t round);
  void workers_run(const std::vector<pid_t>& pids) { memory_kills_.workers_run(pids); }

  // Empty: the worker has none.
  std::string error_file(std::uint64_t round, int local_rank) const;

  // A worker said so; what it says first counts.
  void operation_failed(int local_rank, const OperationFailed& failed);
  // Its flight recorder is written there; empty: nowhere.
  void recorded(int local_rank, const std::string& file) { records_[local_rank] = file; }
  // Those of the round that stay when it is over, by local rank.
  std::vector<std::string> flight_recorders() const;

  // To be called at once: the private error file goes with the round. `communicators`: what its
  // progress page says.
  void add_to(membership::WorkerFailure& failure, std::uint64_t round,
              const std::vector<CommunicatorState>& communicators);

 private:
  ErrorFiles error_files_;
  LogWriter* const writer_;
  MemoryKills memory_kills_;
  std::shared_ptr<const RoundCgroup> cgroup_;  // of the round; second owner: its group of workers
  std::string log_directory_;
  std::string directory_;  // goes with the round; empty: there is none
  // Of the round, by local rank.
  std::map<int, OperationFailed> failed_operations_;
  std::map<int, std::string> records_;

  bool stays(const std::string& file) const;
  void add_memory(membership::WorkerFailure& failure);
  std::string pids_note(const membership::WorkerFailure& failure) const;
};

}  // namespace ddprun::agent
