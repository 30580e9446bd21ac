// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/comm_end.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "common/bounded_call.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "worker_sdk/core/nccl/pause.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

void default_hung_abort(std::string_view message) {
  log_error(message);
  _exit(static_cast<int>(ExitCode::kRetryable));
}

// A split under way hands over what it half made when the abort of its parent has ended it.
void abort_with_child(NcclApi& nccl, Comm comm, const Comm* child) {
  nccl.comm_abort(comm);
  if (child != nullptr && *child != nullptr) nccl.comm_abort(*child);
}

// ncclCommFinalize, and the flush that it began. kInProgress: the deadline passed, or the gate was
// closed.
Result flush(NcclApi& nccl, CommGate& gate, Deadline deadline) {
  Pause pause;
  Result state = Result::kInProgress;
  for (bool is_begun = false;; is_begun = true) {
    {
      const CommGate::Pass pass(gate);
      if (pass.comm() == nullptr) return Result::kInProgress;
      const Result result = is_begun ? nccl.comm_async_error(pass.comm(), &state)
                                     : state = nccl.comm_finalize(pass.comm());
      if (is_begun && result != Result::kSuccess) return result;
    }
    if (state != Result::kInProgress || deadline.expired()) return state;
    pause.take(deadline);
  }
}

}  // namespace

milliseconds leaving_time(const NcclOptions& options) {
  return std::min(options.abort_timeout, options.destroy_timeout) / 4;
}

bool abort_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, CommGate& gate,
                const NcclOptions& options, Deadline deadline) {
  const auto begun = Clock::now();
  std::string what = "ncclCommAbort";
  std::string although;
  const auto abort = [nccl, comm, child = gate.take_child()] {
    abort_with_child(*nccl, comm, child.get());
  };
  if (returns_before(deadline, abort)) {
    const auto last = Deadline::after(leaving_time(options));
    if (gate.empties_before(Deadline(std::max(deadline.at(), last.at())))) return true;
    what = "a call that was inside NCCL";
    although = " although ncclCommAbort did";
  }
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begun);
  const std::string message =
      "rank " + std::to_string(options.rank) + ": " + what + " did not return within " +
      std::to_string(waited.count()) + " ms" + although +
      ": the GPU or its network hangs, and this process can't end it in good order";
  (options.on_hung_abort ? options.on_hung_abort : default_hung_abort)(message);
  return false;
}

bool finish_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                 Deadline flushed) {
  // Second owners: the thread of calls that may never return. The gate keeps it from asking about
  // a communicator that is gone.
  const auto gate = std::make_shared<CommGate>(comm);
  const auto answer = std::make_shared<Result>(Result::kInProgress);
  const bool answered = returns_before(
      flushed, [nccl, gate, answer, flushed] { *answer = flush(*nccl, *gate, flushed); });
  gate->take(Deadline::after(milliseconds(0)));
  const auto last = Deadline::after(options.destroy_timeout);
  if (!answered || *answer != Result::kSuccess) {
    return abort_comm(nccl, comm, *gate, options, Deadline(last.at() - leaving_time(options)));
  }
  // Frees local resources; a library that hangs here can't be aborted any more.
  const bool returned = returns_before(last, [nccl, comm] { nccl->comm_destroy(comm); });
  if (!returned) log_warning("rank ", options.rank, ": ncclCommDestroy hangs; left behind");
  return returned;
}

}  // namespace ddprun::nccl
