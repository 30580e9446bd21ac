// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/setup_steps.h"

#include <optional>
#include <utility>

#include "common/bounded_call.h"
#include "common/exit_bound.h"
#include "worker_sdk/core/nccl/async_query.h"
#include "worker_sdk/core/nccl/pause.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

std::string begin_of_message(const SetUp& setup) {
  return "rank " + std::to_string(setup.options.rank) + ": " + setup.what;
}

std::optional<PeerNotice> who_gave_up(const SetUp& setup) {
  if (auto notice = setup.board.gave_up()) return notice;
  return setup.parent_board != nullptr ? setup.parent_board->gave_up() : std::nullopt;
}

}  // namespace

Result call_before(Deadline deadline, const Libraries& libraries, const NcclOptions& options,
                   const std::string& what, std::function<Result(NcclApi&)> call) {
  const auto begun = Clock::now();
  const auto result = std::make_shared<Result>(Result::kInternalError);
  const auto body = [libraries, device = options.device, result, call = std::move(call)] {
    libraries.cuda->set_device(device);
    *result = call(*libraries.nccl);
  };
  if (returns_before(deadline, body)) return *result;
  bound_exit(options.exit_timeout);
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begun);
  throw Error(ErrorCode::kTimeout, "rank " + std::to_string(options.rank) + ": " + what +
                                       " did not return within " + std::to_string(waited.count()) +
                                       " ms: NCCL, the GPU or its network hangs");
}

void wait_until_ready(const std::shared_ptr<NcclApi>& nccl, const std::shared_ptr<CommGate>& gate,
                      const SetUp& setup) {
  const NcclOptions& options = setup.options;
  AsyncQuery query(nccl, gate, options.rank, setup.what, options.query_timeout);
  Pause pause;
  auto next_look = Deadline::after(options.peer_check_interval);
  for (;;) {
    const auto answer = query.ask();
    if (setup.failure != nullptr) {
      if (const auto error = setup.failure->get()) throw Error(*error);
    }
    if (answer && answer->error) throw Error(*answer->error);
    if (answer && answer->state == Result::kSuccess) return;
    if (options.progress && options.progress->peer_lost()) {
      throw agent_says_peer_lost(options.rank, setup.what);
    }
    if (setup.deadline.expired()) throw timed_out(setup);
    if (next_look.expired()) {
      if (const auto notice = who_gave_up(setup)) {
        throw Error(ErrorCode::kPeerLost, begin_of_message(setup) + ": rank " +
                                              std::to_string(notice->rank) +
                                              " gave up: " + notice->reason);
      }
      next_look = Deadline::after(options.peer_check_interval);
    }
    pause.take(setup.deadline);
  }
}

Error timed_out(const SetUp& setup) {
  std::string message = begin_of_message(setup) + " of " + std::to_string(setup.options.size) +
                        " ranks did not end within " + std::to_string(setup.timeout.count()) +
                        " ms";
  const auto missing = setup.board.not_waiting(0);
  message += missing.empty() ? "; all ranks came, so look at the network between the nodes "
                               "(NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME)"
                             : "; never came: rank " + list_ranks(missing);
  return {ErrorCode::kTimeout, message};
}

}  // namespace ddprun::nccl
