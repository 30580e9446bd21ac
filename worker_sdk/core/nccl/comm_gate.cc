// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/comm_gate.h"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "common/bounded_call.h"
#include "common/env_names.h"
#include "common/exit_codes.h"
#include "common/log.h"

namespace ddprun::nccl {
namespace {

void end_process(std::string_view message) {
  log_error(message);
  _exit(static_cast<int>(ExitCode::kRetryable));
}

// The lock is process-wide, as NCCL's own check is: communicators of several sessions share a
// device.
std::mutex& mutex_of(int device) {
  static std::mutex table_mutex;
  static auto& table =
      *new std::map<int, std::mutex>;  // never destroyed: threads may go on at exit
  const std::lock_guard lock(table_mutex);
  return table[device];
}

}  // namespace

CommGate::Pass::Pass(CommGate& gate, IfBusy if_busy) : gate_(gate) {
  std::unique_lock lock(gate_.mutex_);
  if (if_busy == IfBusy::kWait) {
    gate_.changed_.wait(lock, [&] { return !gate_.is_inside_ || gate_.comm_ == nullptr; });
  }
  if (gate_.is_inside_ || gate_.comm_ == nullptr) return;
  comm_ = gate_.comm_;
  gate_.is_inside_ = true;
}

CommGate::Pass::~Pass() {
  if (comm_ == nullptr) return;
  std::lock_guard lock(gate_.mutex_);
  gate_.is_inside_ = false;
  gate_.changed_.notify_all();
}

Comm CommGate::take(Deadline deadline) {
  std::unique_lock lock(mutex_);
  Comm taken = std::exchange(comm_, nullptr);
  changed_.notify_all();
  const bool is_empty = changed_.wait_until(lock, deadline.at(), [this] { return !is_inside_; });
  return is_empty ? taken : nullptr;
}

bool abort_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                Deadline deadline, bool has_graphs) {
  const auto begun = Clock::now();
  if (returns_before(deadline, [nccl, comm] { nccl->comm_abort(comm); })) return true;
  if (has_graphs) {
    log_warning("rank ", options.rank,
                ": ncclCommAbort waits for CUDA graphs that have its "
                "operations; left behind: destroy graphs before their communicator");
    return false;
  }
  hung(options, "ncclCommAbort", begun);
  return false;
}

bool destroy_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                  Deadline deadline) {
  if (returns_before(deadline, [nccl, comm] { nccl->comm_destroy(comm); })) return true;
  log_warning("rank ", options.rank, ": ncclCommDestroy hangs; left behind");
  return false;
}

void hung(const NcclOptions& options, const std::string& what, Clock::time_point begun) {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
  const std::string message =
      concat("rank ", options.rank, ": ", what, " did not return within ", waited.count(),
             " ms: the GPU or its network hangs, and this process can't end it in good order");
  (options.on_hung_abort ? options.on_hung_abort : end_process)(message);
}

bool DeviceLaunchLock::is_needed() {
  const char* value = std::getenv(env::kNcclLaunchOrderImplicit);
  return value != nullptr && std::strtoll(value, nullptr, 0) != 0;
}

DeviceLaunchLock::DeviceLaunchLock(int device) : lock_(mutex_of(device)) {}

}  // namespace ddprun::nccl
