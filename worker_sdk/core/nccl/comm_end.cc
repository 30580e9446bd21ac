// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/comm_end.h"

#include <unistd.h>

#include <string_view>

#include "common/bounded_call.h"
#include "common/exit_codes.h"
#include "common/log.h"

namespace ddprun::nccl {
namespace {

void end_process(std::string_view message) {
  log_error(message);
  _exit(static_cast<int>(ExitCode::kRetryable));
}

}  // namespace

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
  const std::string message = "rank " + std::to_string(options.rank) + ": " + what +
                              " did not return within " + std::to_string(waited.count()) +
                              " ms: the GPU or its network hangs, and this process can't end it "
                              "in good order";
  (options.on_hung_abort ? options.on_hung_abort : end_process)(message);
}

}  // namespace ddprun::nccl
