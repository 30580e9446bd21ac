// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/comm_split.h"

#include <algorithm>
#include <optional>

#include "rendezvous/store/store_timeout.h"
#include "worker_sdk/core/nccl/peer_board.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

CommMaking::Make split_call(const SplitParent& parent, const SplitPart& part) {
  return [gate = parent.gate, color = part.color, key = part.key](NcclApi& nccl, Comm* made) {
    const CommGate::Pass pass(*gate);
    if (pass.comm() == nullptr) return Result::kInvalidUsage;  // the parent failed, which is seen
    return nccl.comm_split(pass.comm(), color, key, made);
  };
}

}  // namespace

Comm split_comm(const Libraries& libraries, store::Store& store, const SplitParent& parent,
                const SplitPart& part) {
  const NcclOptions& options = parent.options;
  const auto deadline = Deadline::after(part.timeout);
  const store::StoreTimeout limit(store, std::min<milliseconds>(part.timeout, kBriefLook));
  PeerBoard board(store, part.prefix, options.rank, options.size);
  PeerBoard parent_board(store, options.key_prefix, options.rank, options.size);
  const SetUp setup{options,       "split " + part.name, deadline, part.timeout, board,
                    &parent_board, parent.failure.get()};
  std::optional<CommMaking> making;  // outlives the telling: its end may take time
  try {
    board.post_waiting(0);
    making.emplace(libraries, options, "split " + part.name + ": ncclCommSplit",
                   split_call(parent, part));
    const Comm made = making->wait(setup);
    if (made != nullptr) return made;
    throw Error(ErrorCode::kSystem, "rank " + std::to_string(options.rank) + ": " + setup.what +
                                        ": ncclCommSplit ended without a communicator");
  } catch (const Error& error) {
    tell_others(board, error);
    throw;
  }
}

}  // namespace ddprun::nccl
