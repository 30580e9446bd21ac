// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/comm_setup.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/bounded_call.h"
#include "common/log.h"
#include "rendezvous/store/store_timeout.h"
#include "worker_sdk/core/nccl/peer_board.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{10};          // check interval: agent's word, parent's failure
constexpr milliseconds kBriefLook{2'000};  // limit of a request to the store whose answer is there
constexpr milliseconds kComingBack{500};   // limit of a call that no longer waits for other ranks

// A root's value in the store: 'I' and the id, or 'E' and why there is none.
constexpr char kHasId = 'I';
constexpr char kHasError = 'E';

std::atomic<int> num_left_behind{0};

struct Libraries {
  std::shared_ptr<CudaApi> cuda;
  std::shared_ptr<NcclApi> nccl;
};

// A set-up under way, of options.size ranks.
struct SetUp {
  const NcclOptions& options;
  std::string what;  // "NCCL set-up", for messages
  Deadline deadline;
  std::chrono::milliseconds timeout;  // the time that the deadline was made from
  PeerBoard& board;                   // its ranks say here that they wait in operation 0
  PeerBoard* parent_board = nullptr;  // that of a communicator that is split, which is checked, too
  const Failure* failure = nullptr;   // that communicator's failure, which ends the wait
};

// Returns Error(kTimeout) that names the ranks that never came, or says where to look.
Error timed_out(const SetUp& setup) {
  const int rank = setup.options.rank;
  const std::string what = concat(setup.what, " of ", setup.options.size,
                                  " ranks did not end within ", setup.timeout.count(), " ms");
  std::vector<int> missing;
  try {
    missing = setup.board.not_waiting(0);
  } catch (const Error& error) {
    return rank_error(ErrorCode::kTimeout, rank, what,
                      "; the store can't say who is missing: ", error.what());
  }
  if (!missing.empty()) {
    return rank_error(ErrorCode::kTimeout, rank, what, "; never came: rank ", list_ranks(missing));
  }
  return rank_error(ErrorCode::kTimeout, rank, what,
                    "; all ranks came, so look at the network between the nodes "
                    "(NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME)");
}

// Returns nullopt also if the store is slow: the set-up doesn't depend on the store.
std::optional<PeerNotice> who_gave_up(const SetUp& setup) {
  try {
    if (auto notice = setup.board.gave_up()) return notice;
    return setup.parent_board != nullptr ? setup.parent_board->gave_up() : std::nullopt;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    return std::nullopt;
  }
}

// Throws what ends the wait, if anything does. `looks_at_store`: also checks other ranks' notices.
void throw_if_over(const SetUp& setup, bool looks_at_store) {
  const NcclOptions& options = setup.options;
  if (setup.failure != nullptr) {
    if (const auto error = setup.failure->get()) throw Error(*error);
  }
  if (options.progress && options.progress->peer_lost()) {
    throw agent_says_peer_lost(options.rank, setup.what);
  }
  if (setup.deadline.expired()) throw timed_out(setup);
  if (!looks_at_store) return;
  if (const auto notice = who_gave_up(setup)) {
    throw rank_error(ErrorCode::kPeerLost, options.rank, setup.what, ": rank ", notice->rank,
                     " gave up: ", notice->reason);
  }
}

// ncclCommInitRank or ncclCommSplit on a thread of its own, which lives until the call is done.
class CommMaking {
 public:
  // Returns what NCCL returned, and writes the handle. Owns everything that it uses.
  using Make = std::function<Result(NcclApi& nccl, Comm* comm)>;

  // `name` is NCCL's name of the call. Throws Error(kResourceExhausted) if no thread can be
  // started.
  CommMaking(const Libraries& libraries, const NcclOptions& options, std::string name, Make make)
      : nccl_(libraries.nccl),
        options_(options),
        name_(std::move(name)),
        state_(std::make_shared<State>()),
        call_([libraries, device = options.device, state = state_, make = std::move(make)] {
          libraries.cuda->set_device(device);
          state->result = make(*libraries.nccl, &state->comm);
          if (!state->is_one_gone.exchange(true)) return;
          if (state->result == Result::kSuccess) libraries.nccl->comm_abort(state->comm);
          --num_left_behind;
        }) {}

  // Leaves behind a call that is still inside NCCL; its thread aborts what it makes.
  ~CommMaking() {
    if (is_taken_) return;
    ++num_left_behind;
    if (!state_->is_one_gone.exchange(true)) return;
    --num_left_behind;
    if (state_->result == Result::kSuccess) {
      abort_comm(nccl_, state_->comm, options_, Deadline::after(options_.abort_timeout));
    }
  }

  CommMaking(const CommMaking&) = delete;
  CommMaking& operator=(const CommMaking&) = delete;

  // Returns the communicator, which the caller then owns. Throws Error(kTimeout) naming ranks that
  // never came. Throws Error(kPeerLost) naming one that gave up, or if the agent says that one has
  // died. Else throws NCCL's error, or setup.failure's. Checks for lost ranks every
  // peer_check_interval.
  Comm wait(const SetUp& setup) {
    auto next_look = Deadline::after(options_.peer_check_interval);
    while (!call_.returns_before(Deadline(std::min(setup.deadline.at(), Clock::now() + kLook)))) {
      const bool is_time = next_look.expired();
      throw_if_over(setup, is_time);
      if (is_time) next_look = Deadline::after(options_.peer_check_interval);
    }
    if (state_->result != Result::kSuccess) {
      throw_if_over(setup, false);  // throws what may be the reason of NCCL's failure
      throw nccl_error(*nccl_, nullptr, state_->result, options_.rank, name_);
    }
    is_taken_ = true;
    return state_->comm;
  }

  bool returns_before(Deadline deadline) { return call_.returns_before(deadline); }

 private:
  struct State {
    // Used by the call alone until it has returned.
    Comm comm = nullptr;
    Result result = Result::kInternalError;
    // Set by the call's end and by the end of the wait for it. The second of them aborts the
    // communicator that was made.
    std::atomic<bool> is_one_gone{false};
  };

  const std::shared_ptr<NcclApi> nccl_;
  const NcclOptions& options_;
  const std::string name_;
  const std::shared_ptr<State> state_;  // shared with the call
  bool is_taken_ = false;               // wait() has returned the communicator
  BoundedCall call_;
};

// Tells the other ranks why this one gives up, if the store can still be reached.
void tell_others(PeerBoard& board, const Error& error) {
  if (error.code() == ErrorCode::kConnectionLost) return;
  try {
    board.post_gave_up(error.what());
  } catch (const Error&) {
    // The store is gone as well: the first error is the useful one.
  }
}

std::string root_key(const NcclOptions& options, int root) {
  return options.key_prefix + "id/" + std::to_string(root);
}

int root_rank(const NcclOptions& options, int root, int num_roots) {
  return static_cast<int>(static_cast<long long>(root) * options.size / num_roots);
}

UniqueId fresh_id(const Libraries& libraries, const NcclOptions& options, Deadline deadline) {
  const auto begun = Clock::now();
  // Shared with the call, which may outlive this function.
  const auto made = std::make_shared<std::pair<UniqueId, Result>>();
  const auto call = [made, libraries, device = options.device] {
    libraries.cuda->set_device(device);
    made->second = libraries.nccl->get_unique_id(&made->first);
  };
  if (!returns_before(deadline, call)) {
    bound_exit(options.exit_timeout);
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begun);
    throw rank_error(ErrorCode::kTimeout, options.rank, "ncclGetUniqueId did not return within ",
                     waited.count(), " ms: NCCL, the GPU or its network hangs");
  }
  if (made->second == Result::kSuccess) return made->first;
  throw nccl_error(*libraries.nccl, nullptr, made->second, options.rank, "ncclGetUniqueId");
}

void publish_ids(const Libraries& libraries, store::Store& store, const NcclOptions& options,
                 int num_roots, Deadline deadline) {
  for (int root = 0; root < num_roots; ++root) {
    if (root_rank(options, root, num_roots) != options.rank) continue;
    try {
      // Takes half of the time, so that the other ranks, which wait for the id, can still be told
      // that none comes.
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
  const store::StoreTimeout limit(store, deadline);  // the time that is left
  for (const std::string& value : store.multi_get(keys)) {
    if (!value.empty() && value[0] == kHasError) throw Error(ErrorCode::kPeerLost, value.substr(1));
    if (value.size() != UniqueId::kSizeBytes + 1 || value[0] != kHasId) {
      throw rank_error(ErrorCode::kProtocol, options.rank, "the NCCL id in the store has ",
                       value.size(), " bytes: something else writes to the SDK's keys");
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

// Resets the options that NCCL of this version doesn't know, and returns their names.
std::string drop_unknown(NcclConfig& config, int version) {
  std::vector<std::string> unknown;
  if (version < 22600 && config.traffic_class) {
    config.traffic_class.reset();
    unknown.emplace_back("traffic_class");
  }
  if (version < 22700 && !config.comm_name.empty()) {
    config.comm_name.clear();
    unknown.emplace_back("comm_name");
  }
  return listed(unknown);
}

// Returns the options that this NCCL knows. Rank 0 warns of the rest.
NcclConfig known_config(NcclApi& nccl, const NcclOptions& options) {
  NcclConfig config = options.config;
  const std::string unknown = drop_unknown(config, nccl.config_version());
  if (!unknown.empty() && options.rank == 0) {
    log_warning("NCCL ", version_text(nccl.config_version()), " has no ", unknown,
                ": the communicator is made without");
  }
  return config;
}

CommMaking::Make init_call(const NcclOptions& options, std::vector<UniqueId> ids,
                           NcclConfig config) {
  return [ids = std::move(ids), size = options.size, rank = options.rank,
          config = std::move(config)](NcclApi& nccl, Comm* comm) {
    const auto num_ids = static_cast<int>(ids.size());
    const Result result =
        num_ids == 1 ? nccl.comm_init_rank(comm, size, ids[0], rank, config)
                     : nccl.comm_init_rank_scalable(comm, size, rank, ids.data(), num_ids, config);
    // NCCL keeps the half-made communicator, with its sockets and memory.
    if (result != Result::kSuccess && *comm != nullptr) nccl.comm_abort(*comm);
    return result;
  };
}

CommMaking::Make split_call(const SplitParent& parent, const SplitPart& part) {
  return [gate = parent.gate, color = part.color, key = part.key](NcclApi& nccl, Comm* made) {
    const CommGate::Pass pass(*gate);
    if (pass.comm() == nullptr) return Result::kInvalidUsage;  // the parent failed: wait() sees it
    return nccl.comm_split(pass.comm(), color, key, made);
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
    making.emplace(libraries, options, "ncclCommInitRank",
                   init_call(options, ids, known_config(*nccl, options)));
    return making->wait(setup);
  } catch (const Error& error) {
    store.set_timeout(kBriefLook);
    tell_others(board, error);
    if (making) {
      // NCCL often returns by itself once the others' connections are gone.
      making->returns_before(Deadline::after(kComingBack));
      bound_exit(options.exit_timeout);
    }
    throw;
  }
}

Comm split_comm(const std::shared_ptr<CudaApi>& cuda, const std::shared_ptr<NcclApi>& nccl,
                store::Store& store, const SplitParent& parent, const SplitPart& part) {
  const NcclOptions& options = parent.options;
  const auto deadline = Deadline::after(part.timeout);
  const store::StoreTimeout limit(store, std::min<milliseconds>(part.timeout, kBriefLook));
  PeerBoard board(store, part.prefix, options.rank, options.size);
  PeerBoard parent_board(store, options.key_prefix, options.rank, options.size);
  const SetUp setup{options,       "split " + part.name, deadline, part.timeout, board,
                    &parent_board, parent.failure.get()};
  std::optional<CommMaking> making;  // destroyed after tell_others(), as it may take time
  try {
    board.post_waiting(0);
    making.emplace(Libraries{cuda, nccl}, options, "split " + part.name + ": ncclCommSplit",
                   split_call(parent, part));
    const Comm made = making->wait(setup);
    if (made != nullptr) return made;
    throw rank_error(ErrorCode::kSystem, options.rank, setup.what,
                     ": ncclCommSplit ended without a communicator");
  } catch (const Error& error) {
    tell_others(board, error);
    throw;
  }
}

bool is_any_comm_left_behind() { return num_left_behind > 0; }

}  // namespace ddprun::nccl
