// SPDX-License-Identifier: Apache-2.0
#include "agent/failure_details.h"

#include <unistd.h>

#include <ctime>
#include <functional>
#include <utility>

#include "agent/operation_report.h"
#include "agent/output/log_tree.h"
#include "agent/output/log_writer.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

using Paths = std::vector<std::string>;

Paths log_files(const std::string& directory, int local_rank) {
  Paths files;
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    std::string file = LogTree::log_file(directory, local_rank, stream);
    if (::access(file.c_str(), F_OK) == 0) files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

void FailureDetails::begin_round(std::uint64_t round, const std::string& log_directory,
                                 const std::string& directory,
                                 std::shared_ptr<const RoundCgroup> cgroup) {
  cgroup_ = std::move(cgroup);
  error_files_.begin_round(round, log_directory, directory);
  log_directory_ = log_directory;
  directory_ = directory;
  memory_kills_.begin_round();
  failed_operations_.clear();
  records_.clear();
}

void FailureDetails::go_on(std::uint64_t round) {
  error_files_.go_on(round);
  failed_operations_.clear();
  records_.clear();
}

std::string FailureDetails::error_file(std::uint64_t round, int local_rank) const {
  return error_files_.path(round, local_rank);
}

void FailureDetails::operation_failed(int local_rank, const OperationFailed& failed) {
  failed_operations_.emplace(local_rank, failed);
}

bool FailureDetails::stays(const std::string& file) const {
  return !file.empty() && (directory_.empty() || !file.starts_with(directory_ + "/"));
}

std::vector<std::string> FailureDetails::flight_recorders() const {
  std::vector<std::string> files;
  for (const auto& [local_rank, file] : records_) {
    if (stays(file)) files.push_back(file);
  }
  return files;
}

// Where its own cgroup counts, no other's count can be of it.
void FailureDetails::add_memory(membership::WorkerFailure& failure) {
  if (!cgroup_ || !cgroup_->counts_memory()) {
    failure.out_of_memory = memory_kills_.explain(failure.signal_number);
    return;
  }
  const WorkerMemory memory = cgroup_->memory_of(failure.local_rank);
  failure.out_of_memory = explain_end(memory, failure.signal_number);
  failure.memory_peak_bytes = memory.peak_bytes.value_or(0);
  failure.memory_limit_bytes = memory.limit_bytes.value_or(0);
}

std::string FailureDetails::pids_note(const membership::WorkerFailure& failure) const {
  const std::uint64_t refused = cgroup_ ? cgroup_->pids_refused(failure.local_rank) : 0;
  if (refused == 0) return {};
  return concat("its limit of processes and threads (--worker-pids) refused it one ", refused,
                refused == 1 ? " time" : " times");
}

void FailureDetails::add_to(membership::WorkerFailure& failure, std::uint64_t round,
                            const std::vector<CommunicatorState>& communicators) {
  const auto failed = failed_operations_.find(failure.local_rank);
  if (failed != failed_operations_.end()) {
    failure.operation = failed_operation_text(failed->second);
    if (stays(failed->second.file)) failure.flight_recorder = failed->second.file;
  } else {
    failure.operation = whereabouts_text(communicators, Clock::now());
  }
  failure.ended_at = std::time(nullptr);
  add_memory(failure);
  WorkerError left = error_files_.read(round, failure.local_rank);
  if (failure.note.empty()) failure.note = std::move(left.message);
  if (failure.note.empty()) failure.note = pids_note(failure);
  failure.traceback = std::move(left.traceback);
  failure.error_fields = std::move(left.fields);
  if (log_directory_.empty()) return;
  if (!failure.traceback.empty()) failure.error_file = error_file(round, failure.local_rank);
  const std::function<Paths()> look = [directory = log_directory_, rank = failure.local_rank] {
    return log_files(directory, rank);
  };
  failure.log_files = writer_ ? writer_->call(look).value_or(Paths()) : look();
}

}  // namespace ddprun::agent
