// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/comm_split.h"

#include <utility>

#include "rendezvous/store/store_timeout.h"
#include "worker_sdk/core/nccl/comm_end.h"
#include "worker_sdk/core/nccl/peer_board.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

void throw_why_parent_failed(const SplitParent& parent) {
  if (const auto error = parent.failure->get()) throw Error(*error);
}

// Begins the split; NCCL writes what it makes at `child`.
void begin_split(const Libraries& libraries, const SplitParent& parent, const SplitPart& part,
                 Deadline deadline, const std::shared_ptr<Comm>& child) {
  parent.gate->begin_split(child);
  const auto call = [gate = parent.gate, child, color = part.color, key = part.key](NcclApi& nccl) {
    const CommGate::Pass pass(*gate);
    if (pass.comm() == nullptr) return Result::kInProgress;  // the parent failed, which is seen
    return nccl.comm_split(pass.comm(), color, key, child.get());
  };
  const Result result = call_before(deadline, libraries, parent.options, "ncclCommSplit", call);
  throw_why_parent_failed(parent);  // its abort is why the call came back
  if (result == Result::kSuccess || result == Result::kInProgress) return;
  throw nccl_error(*libraries.nccl, nullptr, result, parent.options.rank,
                   "split " + part.name + ": ncclCommSplit");
}

// The whole child of a parent that is ready again. It is this function's until it returns.
Comm finish_child(const Libraries& libraries, const SplitParent& parent, const SetUp& setup,
                  Comm child) {
  const auto gate = std::make_shared<CommGate>(child);  // second owner: a query
  try {
    wait_until_ready(libraries.nccl, gate, setup);
    return child;
  } catch (const Error&) {
    gate->take(Deadline::after(milliseconds(0)));
    abort_comm(libraries.nccl, child, *gate, parent.options,
               Deadline::after(parent.options.abort_timeout));
    throw;
  }
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
  try {
    board.post_waiting(0);
    const auto child = std::make_shared<Comm>(nullptr);  // second owners: the call, the gate
    begin_split(libraries, parent, part, deadline, child);
    wait_until_ready(libraries.nccl, parent.gate, setup);
    if (!parent.gate->end_split()) throw_why_parent_failed(parent);
    if (*child == nullptr) {
      throw Error(ErrorCode::kSystem, "rank " + std::to_string(options.rank) + ": " + setup.what +
                                          ": ncclCommSplit ended without a communicator");
    }
    return finish_child(libraries, parent, setup, *child);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConnectionLost) {
      try {
        board.post_gave_up(error.what());
      } catch (const Error&) {
        // The store is gone as well: the first error is the one that helps.
      }
    }
    throw;
  }
}

}  // namespace ddprun::nccl
