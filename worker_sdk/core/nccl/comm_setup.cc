// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/comm_setup.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "common/bounded_call.h"
#include "common/exit_bound.h"
#include "rendezvous/store/store_timeout.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/peer_board.h"
#include "worker_sdk/core/nccl/setup_steps.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

// A root's value: 'I' and the id, or 'E' and why there is none.
constexpr char kHasId = 'I';
constexpr char kHasError = 'E';

constexpr milliseconds kComingBack{500};  // for a call that has nobody to wait for any more

std::string root_key(const NcclOptions& options, int root) {
  return options.key_prefix + "id/" + std::to_string(root);
}

int root_rank(const NcclOptions& options, int root, int num_roots) {
  return static_cast<int>(static_cast<long long>(root) * options.size / num_roots);
}

UniqueId fresh_id(const Libraries& libraries, const NcclOptions& options, Deadline deadline) {
  const auto begun = Clock::now();
  // Second owner: the call, which may be left behind.
  const auto made = std::make_shared<std::pair<UniqueId, Result>>();
  const auto call = [made, libraries, device = options.device] {
    libraries.cuda->set_device(device);
    made->second = libraries.nccl->get_unique_id(&made->first);
  };
  if (!returns_before(deadline, call)) {
    bound_exit(options.exit_timeout);
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begun);
    throw Error(ErrorCode::kTimeout, "rank " + std::to_string(options.rank) +
                                         ": ncclGetUniqueId did not return within " +
                                         std::to_string(waited.count()) +
                                         " ms: NCCL, the GPU or its network hangs");
  }
  if (made->second == Result::kSuccess) return made->first;
  throw nccl_error(*libraries.nccl, nullptr, made->second, options.rank, "ncclGetUniqueId");
}

void publish_ids(const Libraries& libraries, store::Store& store, const NcclOptions& options,
                 int num_roots, Deadline deadline) {
  for (int root = 0; root < num_roots; ++root) {
    if (root_rank(options, root, num_roots) != options.rank) continue;
    try {
      // Half of the time: the other ranks, which wait for the id, can still be told that none
      // comes.
      const UniqueId id = fresh_id(libraries, options, Deadline::after(deadline.remaining() / 2));
      store.set(root_key(options, root), kHasId + std::string(id.bytes, UniqueId::kSizeBytes));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kConnectionLost) throw;
      store.set(root_key(options, root), kHasError + std::string(error.what()));
      throw;
    }
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

std::vector<UniqueId> collect_ids_or_name_missing(store::Store& store, const SetUp& setup,
                                                  int num_roots) {
  try {
    return collect_ids(store, setup.options, num_roots, setup.deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
  }
  store.set_timeout(kBriefLook);
  throw timed_out(setup);
}

CommMaking::Make init_call(const NcclOptions& options, std::vector<UniqueId> ids) {
  return
      [ids = std::move(ids), size = options.size, rank = options.rank](NcclApi& nccl, Comm* comm) {
        const Result result = ids.size() == 1
                                  ? nccl.comm_init_rank(comm, size, ids[0], rank)
                                  : nccl.comm_init_rank_scalable(comm, size, rank, ids.data(),
                                                                 static_cast<int>(ids.size()));
        // NCCL leaves what it half made, with its sockets and memory.
        if (result != Result::kSuccess && *comm != nullptr) nccl.comm_abort(*comm);
        return result;
      };
}

}  // namespace

Comm set_up_comm(const std::shared_ptr<CudaApi>& cuda, const std::shared_ptr<NcclApi>& nccl,
                 store::Store& store, const NcclOptions& options) {
  const auto deadline = Deadline::after(options.init_timeout);
  const store::StoreTimeout limit(store, deadline);
  PeerBoard board(store, options.key_prefix, options.rank, options.size);
  const SetUp setup{options, "NCCL set-up", deadline, options.init_timeout, board};
  const Libraries libraries{cuda, nccl};
  std::optional<CommMaking> making;
  try {
    board.post_waiting(0);  // operation 0 is the set-up
    const int num_roots = num_roots_for(*nccl, options);
    publish_ids(libraries, store, options, num_roots, deadline);
    const auto ids = collect_ids_or_name_missing(store, setup, num_roots);
    store.set_timeout(kBriefLook);
    making.emplace(libraries, options, "ncclCommInitRank", init_call(options, ids));
    return making->wait(setup);
  } catch (const Error& error) {
    store.set_timeout(kBriefLook);
    tell_others(board, error);
    if (making) {
      // NCCL often comes back by itself once the others' connections are gone.
      making->returns_before(Deadline::after(kComingBack));
      bound_exit(options.exit_timeout);
    }
    throw;
  }
}

}  // namespace ddprun::nccl
