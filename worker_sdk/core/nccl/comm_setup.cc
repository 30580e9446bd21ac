// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/comm_setup.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "common/bounded_call.h"
#include "common/exit_bound.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "rendezvous/store/store_timeout.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/pause.h"
#include "worker_sdk/core/nccl/peer_board.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBriefLook{2'000};  // for a request whose answer is there already

// A root's value: 'I' and the id, or 'E' and why there is none.
constexpr char kHasId = 'I';
constexpr char kHasError = 'E';

std::string root_key(const NcclOptions& options, int root) {
  return options.key_prefix + "id/" + std::to_string(root);
}

int root_rank(const NcclOptions& options, int root, int num_roots) {
  return static_cast<int>(static_cast<long long>(root) * options.size / num_roots);
}

void publish_ids(NcclApi& nccl, store::Store& store, const NcclOptions& options, int num_roots) {
  for (int root = 0; root < num_roots; ++root) {
    if (root_rank(options, root, num_roots) != options.rank) continue;
    UniqueId id;
    const Result result = nccl.get_unique_id(&id);
    if (result != Result::kSuccess) {
      const Error error = nccl_error(nccl, nullptr, result, options.rank, "ncclGetUniqueId");
      store.set(root_key(options, root), kHasError + std::string(error.what()));
      throw Error(error);
    }
    store.set(root_key(options, root), kHasId + std::string(id.bytes, UniqueId::kSizeBytes));
  }
}

std::vector<UniqueId> collect_ids(store::Store& store, const NcclOptions& options, int num_roots,
                                  Deadline deadline) {
  std::vector<std::string> keys;
  for (int root = 0; root < num_roots; ++root) keys.push_back(root_key(options, root));
  store.wait(keys);
  std::vector<UniqueId> ids;
  const store::StoreTimeout limit(store, deadline);  // what is left of it
  for (const std::string& value : store.multi_get(keys)) {
    if (!value.empty() && value[0] == kHasError) {
      throw Error(ErrorCode::kPeerLost, value.substr(1));
    }
    if (value.size() != UniqueId::kSizeBytes + 1 || value[0] != kHasId) {
      throw Error(ErrorCode::kProtocol, "rank " + std::to_string(options.rank) +
                                            ": the NCCL id in the store has " +
                                            std::to_string(value.size()) +
                                            " bytes: " + "something else writes to the SDK's keys");
    }
    ids.emplace_back();
    std::memcpy(ids.back().bytes, value.data() + 1, UniqueId::kSizeBytes);
  }
  return ids;
}

int num_roots_for(NcclApi& nccl, const NcclOptions& options) {
  if (options.size <= options.max_ranks_per_root || !nccl.has_init_rank_scalable()) return 1;
  return (options.size + options.max_ranks_per_root - 1) / options.max_ranks_per_root;
}

Error init_timed_out(PeerBoard& board, const NcclOptions& options) {
  std::string message = "rank " + std::to_string(options.rank) + ": NCCL set-up of " +
                        std::to_string(options.size) + " ranks did not end within " +
                        std::to_string(options.init_timeout.count()) + " ms";
  const auto missing = board.not_waiting(0);
  message += missing.empty() ? "; all ranks came, so look at the network between the nodes "
                               "(NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME)"
                             : "; never came: rank " + list_ranks(missing);
  return {ErrorCode::kTimeout, message};
}

std::vector<UniqueId> collect_ids_or_name_missing(store::Store& store, PeerBoard& board,
                                                  const NcclOptions& options, int num_roots,
                                                  Deadline deadline) {
  try {
    return collect_ids(store, options, num_roots, deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
  }
  store.set_timeout(kBriefLook);
  throw init_timed_out(board, options);
}

// Polls until NCCL's init has ended well; throws otherwise.
void wait_for_init(NcclApi& nccl, Comm comm, PeerBoard& board, Deadline deadline,
                   const NcclOptions& options) {
  Pause pause;
  auto next_look = Deadline::after(options.peer_check_interval);
  for (;;) {
    Result state = Result::kInProgress;
    Result result = nccl.comm_async_error(comm, &state);
    if (result == Result::kSuccess) result = state;
    if (result == Result::kSuccess) return;
    if (result != Result::kInProgress) {
      throw nccl_error(nccl, comm, result, options.rank, "NCCL set-up");
    }
    if (deadline.expired()) throw init_timed_out(board, options);
    if (next_look.expired()) {
      if (const auto notice = board.gave_up()) {
        throw Error(ErrorCode::kPeerLost,
                    "rank " + std::to_string(options.rank) + ": NCCL set-up: rank " +
                        std::to_string(notice->rank) + " gave up: " + notice->reason);
      }
      next_look = Deadline::after(options.peer_check_interval);
    }
    pause.take(deadline);
  }
}

void default_hung_abort(std::string_view message) {
  log_error(message);
  _exit(static_cast<int>(ExitCode::kRetryable));
}

}  // namespace

Comm set_up_comm(const std::shared_ptr<NcclApi>& nccl, store::Store& store,
                 const NcclOptions& options) {
  const auto deadline = Deadline::after(options.init_timeout);
  const store::StoreTimeout limit(store, deadline);
  PeerBoard board(store, options.key_prefix, options.rank, options.size);
  Comm comm = nullptr;
  try {
    board.post_waiting(0);  // operation 0 is the set-up
    const int num_roots = num_roots_for(*nccl, options);
    publish_ids(*nccl, store, options, num_roots);
    const auto ids = collect_ids_or_name_missing(store, board, options, num_roots, deadline);
    const Result result = num_roots == 1
                              ? nccl->comm_init_rank(&comm, options.size, ids[0], options.rank)
                              : nccl->comm_init_rank_scalable(&comm, options.size, options.rank,
                                                              ids.data(), num_roots);
    if (result != Result::kSuccess && result != Result::kInProgress) {
      throw nccl_error(*nccl, nullptr, result, options.rank, "ncclCommInitRank");
    }
    store.set_timeout(kBriefLook);
    wait_for_init(*nccl, comm, board, deadline, options);
    return comm;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConnectionLost) {
      try {
        store.set_timeout(kBriefLook);
        board.post_gave_up(error.what());
      } catch (const Error&) {
        // The store is gone as well: the first error is the one that helps.
      }
    }
    if (comm != nullptr) {
      abort_comm(nccl, comm, options, Deadline::after(options.abort_timeout));
      bound_exit(options.exit_timeout);
    }
    throw;
  }
}

Result poll_until_settled(NcclApi& nccl, Comm comm, Deadline deadline) {
  Pause pause;
  for (;;) {
    Result state = Result::kInProgress;
    const Result result = nccl.comm_async_error(comm, &state);
    if (result != Result::kSuccess) return result;
    if (state != Result::kInProgress || deadline.expired()) return state;
    pause.take(deadline);
  }
}

bool abort_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                Deadline deadline) {
  const auto begun = Clock::now();
  if (returns_before(deadline, [nccl, comm] { nccl->comm_abort(comm); })) return true;
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begun);
  const std::string message =
      "rank " + std::to_string(options.rank) + ": ncclCommAbort did not return within " +
      std::to_string(waited.count()) +
      " ms: the GPU or its network hangs, and this process can't end it in good order";
  (options.on_hung_abort ? options.on_hung_abort : default_hung_abort)(message);
  return false;
}

bool finish_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options) {
  const auto deadline = Deadline::after(options.abort_timeout);
  // Second owner: the thread of a call that may never return.
  auto answer = std::make_shared<Result>(Result::kInProgress);
  const bool answered =
      returns_before(deadline, [nccl, comm, answer] { *answer = nccl->comm_finalize(comm); });
  Result result = answered ? *answer : Result::kInProgress;
  if (answered && result == Result::kInProgress) result = poll_until_settled(*nccl, comm, deadline);
  const auto last = Deadline::after(options.destroy_timeout);
  if (result != Result::kSuccess) return abort_comm(nccl, comm, options, last);
  // Frees local resources; a library that hangs here can't be aborted any more.
  const bool returned = returns_before(last, [nccl, comm] { nccl->comm_destroy(comm); });
  if (!returned) log_warning("rank ", options.rank, ": ncclCommDestroy hangs; left behind");
  return returned;
}

}  // namespace ddprun::nccl
