// SPDX-License-Identifier: Apache-2.0
// A worker's place in the job: environment, store, and the communicators made from them. The first
// object of a worker's main().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/backend_choice.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/worker_env.h"

namespace ddprun {

// Opens one more connection to the round's store. Any thread.
using StoreFactory = std::function<std::unique_ptr<store::Store>()>;

// The caller's current CUDA stream (a cudaStream_t) on a device. Called on the thread that starts
// or waits for an operation.
using CurrentStream = std::function<void*(int device_index)>;

struct SessionOptions {
  std::chrono::milliseconds connect_timeout{60'000};  // until the store answers
  std::chrono::milliseconds store_timeout{300'000};   // deadline of each call of store()
};

struct CommunicatorOptions {
  std::chrono::milliseconds timeout{300'000};       // default deadline of each operation
  std::chrono::milliseconds init_timeout{300'000};  // until all ranks have joined
  // nccl only. Default: the legacy default stream. LibTorch programs pass their current stream.
  CurrentStream current_stream{};
};

// One thread at a time.
class Session {
 public:
  // Reads the environment and connects to the store. Throws Error(kInvalidArgument) listing every
  // missing variable, Error(kUnavailable) when no store answers.
  static std::unique_ptr<Session> from_env(const SessionOptions& options = {});

  // The same with everything given: `connect` is called once here and again whenever a second
  // thread needs a connection.
  Session(WorkerEnv env, StoreFactory connect);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const WorkerEnv& env() const { return env_; }
  int rank() const { return env_.rank; }
  int world_size() const { return env_.world_size; }

  // Keys for the program's own use, fresh in each round; the SDK's lie elsewhere.
  store::Store& store() { return *user_store_; }

  // Collective: every rank calls it in the same order with the same choice. Each communicator has
  // a key space of its own, so several may live at once. kAuto takes NCCL where every rank has a
  // device of its own (device LOCAL_RANK), else host, with one warning from rank 0 that says why.
  // Throws Error(kInvalidArgument) when explicit kNccl can't work, naming the rank, on every rank
  // and before NCCL starts; Error(kTimeout) naming ranks that did not come. The communicator must
  // not outlive the session.
  std::unique_ptr<Communicator> make_communicator(BackendChoice choice = BackendChoice::kAuto,
                                                  const CommunicatorOptions& options = {});

 private:
  // Constant after construction.
  const WorkerEnv env_;
  const StoreFactory connect_;
  const std::string round_prefix_;
  std::unique_ptr<store::Store> store_;  // the raw connection
  std::unique_ptr<store::Store> user_store_;

  int num_communicators_ = 0;  // made so far; the same on every rank
};

}  // namespace ddprun
