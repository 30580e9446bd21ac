// SPDX-License-Identifier: Apache-2.0
// A worker's place in the job: environment, store, and the communicators made from them. The first
// object of a worker's main().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/backend_choice.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/nccl_config.h"
#include "worker_sdk/core/worker_env.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun {

class AgentContact;
class StopBoundary;
struct DeviceOffer;
namespace nccl {
class CudaApi;
class NcclApi;
}  // namespace nccl

// The libraries of the nccl backend, shared with the communicators made from them.
struct NcclLibraries {
  std::shared_ptr<nccl::CudaApi> cuda;
  std::shared_ptr<nccl::NcclApi> nccl;
  // Throws Error(kUnsupported) if the program's own code can't run on this device; the rank then
  // has no device. Empty: it can run on all.
  std::function<void(int device)> check_device{};
};

// Throws Error(kUnsupported), which says what is missing. A session doesn't call it again after it
// has succeeded. Nor does the session of Session::recover(), which takes over the libraries.
using NcclLoader = std::function<NcclLibraries()>;

// The machine's own CUDA runtime and NCCL (nccl/loader.h).
NcclLibraries load_nccl_libraries();

// Opens one more connection to the round's store. Any thread.
using StoreFactory = std::function<std::unique_ptr<store::Store>()>;

struct SessionOptions {
  std::chrono::milliseconds connect_timeout{60'000};  // until the store answers
  std::chrono::milliseconds store_timeout{300'000};   // deadline of each call of store()
  // Called when a communicator may be NCCL's. A program that needs more than CUDA and NCCL checks
  // that here: the error thrown is why this rank has no GPU of its own.
  NcclLoader nccl_loader = load_nccl_libraries;
};

struct CommunicatorOptions {
  std::chrono::milliseconds timeout = kDefaultTimeout;       // default deadline of each operation
  std::chrono::milliseconds init_timeout = kDefaultTimeout;  // until all ranks have joined
  // nccl only: tells the caller's stream for good, so Communicator::follow_stream() has no effect.
  // Empty: the legacy default stream, until follow_stream().
  CurrentStream current_stream{};
  // nccl only: Work::wait() also blocks the calling thread until the result is there.
  bool blocking_wait = false;
  // nccl only (host compares them always): before each collective the ranks compare their calls. If
  // they differ, every rank gets Error(kProtocol), which says how (checked_communicator.h). Slow,
  // for finding errors. DDPRUN_DEBUG=collectives sets it, too. The same on every rank.
  bool compare_calls = false;
  NcclConfig nccl_config{};  // nccl only; the same on every rank
};

// Used by one thread at a time.
class Session {
 public:
  // Waits, in a spare's worker under --prewarm, until the node has a place in a round, and puts
  // that into the environment. Otherwise it returns at once. from_env() does so, too; a program
  // that reads the environment before (WORLD_SIZE: is there a launcher?) calls it first. Throws
  // Error(kUnavailable) or Error(kTimeout) if no agent gives a place.
  static void wait_for_place();

  // Reads the environment and connects to the store. Sets NCCL_RAS_ADDR (one per job) and
  // NCCL_LAUNCH_ORDER_IMPLICIT (1) where they are not set, and NCCL_COMM_BLOCKING (1): call it
  // before the program's threads start. In a spare's worker under --prewarm it waits until the node
  // has a place in a round. Throws Error(kInvalidArgument) listing every missing variable,
  // Error(kUnavailable) when no store answers.
  static std::unique_ptr<Session> from_env(const SessionOptions& options = {});

  // The same with a given environment: the process' own is neither read nor set.
  static std::unique_ptr<Session> connect(WorkerEnv env, const SessionOptions& options = {});

  // The same with everything given, for a session that never recovers. `connect` is called here,
  // and again whenever a second thread needs a connection. `loader` is called when a communicator
  // may be NCCL's.
  Session(WorkerEnv env, StoreFactory connect, NcclLoader loader = load_nccl_libraries);
  ~Session();

  const WorkerEnv& env() const { return env_; }
  int rank() const { return env_.rank; }
  int world_size() const { return env_.world_size; }

  // The store for the program's own keys, fresh in each round. The SDK's keys lie elsewhere.
  store::Store& store() { return *user_store_; }

  // How far this worker is. Tell it each step (WorkerProgress::begin_step) and each phase that
  // isn't training (set_phase), so that a hang is told from a long step. Without an agent nobody
  // reads it.
  WorkerProgress& progress() { return *progress_; }

  // Call it at the beginning of each step (1, 2, …, counted over restarts), on every rank. False:
  // the step begins (WorkerProgress::begin_step). True, on all ranks at the same step: the job is
  // about to lose a node or its time. Then save the state at the end of the step before, and exit
  // with 75 (ExitCode::kRetryable) before progress().stop_deadline(). It reads one word of memory;
  // once a stop is asked for, each step costs a round trip to the store. Before that round trip it
  // calls `finish_device`, if any, which returns when the device has done all that was started.
  // Without it, ranks whose hosts run ahead of their GPUs can miss the boundary. If the store fails
  // or doesn't answer, the agreement is given up: false, after at most two times 5 s and a warning.
  bool should_stop(std::uint64_t step, const std::function<void()>& finish_device = {});

  // exclude_node() reports that this node is faulty; the round goes on without it. stop_job() ends
  // the job with `exit_code` (1 … 255). The agent ends this process soon after. False: no agent
  // took the request.
  bool exclude_node(std::string_view reason);
  bool stop_job(std::string_view reason, int exit_code = 1);

  // Offers recovery in place (docs/inplace.md): with --recovery=inplace the ranks that live when
  // one has died go on as they are. All ranks must offer it before; otherwise the job restarts as
  // usual. False: it isn't asked for, or no agent took it; the program runs without it.
  bool offer_recovery();

  // Returns whether Error(kPeerLost) of an operation may be answered with recover(): the offer was
  // taken. Ranks may differ in it; collective decisions use env().recovers_in_place instead.
  bool may_recover() const { return offers_recovery_; }

  // Recovers from Error(kPeerLost). If may_recover(), every rank that lives calls it. It aborts
  // `failed` (null: none) and waits until the agent gives this rank its place in the next round. It
  // returns that round's session, which has offered recovery again. The ranks that are left get new
  // numbers from 0, in the same order. The device, CUDA and NCCL stay. The environment's variables
  // stay, too: env() has the new values. First destroy all that uses a communicator of this
  // session: groups, buffers, DistributedDataParallel, Checkpoint; and its other communicators.
  // `failed` is destroyed here, whether this returns or throws. Its operations have left the device
  // by then: allocate nothing on the device between the error and the end of this call. Throws
  // Error if the job doesn't go on in place; the process must then exit with a failure, to be
  // started again.
  std::unique_ptr<Session> recover(std::unique_ptr<Communicator> failed);

  // Collective: every rank calls it in the same order with the same choice. Each communicator has a
  // key space of its own, so several may live at once. With kAuto it is NCCL if every rank has a
  // device of its own (device LOCAL_RANK). Else it is host, with one warning from rank 0 that says
  // why. Throws Error(kInvalidArgument) when explicit kNccl can't work, naming the rank, on every
  // rank and before NCCL starts. Error(kTimeout) names ranks that did not come. The errors of the
  // backend's set-up pass, too. With nccl the calling thread's CUDA device is LOCAL_RANK
  // afterwards.
  std::unique_ptr<Communicator> make_communicator(BackendChoice choice = BackendChoice::kAuto,
                                                  const CommunicatorOptions& options = {});

 private:
  DeviceOffer offer_device(BackendChoice choice);
  std::unique_ptr<Communicator> make_host(const std::string& prefix,
                                          const CommunicatorOptions& options,
                                          const std::shared_ptr<WorkerProgress>& progress);
  std::unique_ptr<Communicator> make_nccl(const std::string& prefix,
                                          const CommunicatorOptions& options);

  // Constant after construction.
  const WorkerEnv env_;
  const StoreFactory connect_;
  const NcclLoader loader_;
  const std::string round_prefix_;             // "ddprun/<round>/"
  const std::shared_ptr<store::Store> store_;  // the raw connection, shared with views of it
  const std::unique_ptr<store::Store> user_store_;

  // Shared with the communicators, which count their operations in it.
  const std::shared_ptr<WorkerProgress> progress_;
  const std::unique_ptr<StopBoundary> stop_;
  const std::unique_ptr<AgentContact> agent_;

  std::optional<SessionOptions> options_;  // those given to connect()
  bool offers_recovery_ = false;

  NcclLibraries libraries_;  // loaded when first needed, or taken over from the session before
};

}  // namespace ddprun
