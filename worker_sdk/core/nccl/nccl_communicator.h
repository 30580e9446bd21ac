// SPDX-License-Identifier: Apache-2.0
// Collectives over NCCL (docs/nccl.md). Operations run on one high-priority stream of their own,
// behind what the caller's current stream holds when they start.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/nccl/caller_stream.h"
#include "worker_sdk/core/nccl/cuda_api.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_options.h"
#include "worker_sdk/core/nccl/operation.h"
#include "worker_sdk/core/nccl/stream_drain.h"
#include "worker_sdk/core/nccl/watchdog.h"

namespace ddprun::nccl {

struct SplitPart;

// As Communicator says, and: buffers are on options.device. Work::wait() orders the caller's
// current stream behind the operation and returns at once (blocking_wait: when the result is
// there); an error that comes later is thrown by the next call. Any failure ends the communicator
// on this rank, and the others are told; so does a split that fails. Calls from several threads at
// a time are serialised, their order is then undefined.
//
// An operation that starts while the caller's stream captures a CUDA graph becomes part of it: its
// Work counts as done, and each replay runs it, without a deadline. All ranks capture the same; the
// first operation of a kind comes before, for NCCL connects in it. Graphs go before the
// communicator: NCCL's destroy and abort wait for them. Error(kInvalidArgument): barrier(),
// allocate() and split() in a capture; an operation on another stream meanwhile; waiting in a
// capture for an operation that began before it.
class NcclCommunicator : public Communicator {
 public:
  // Collective. The store is used during this call only; its time-out is restored. Throws
  // Error(kInvalidArgument) for options that can't be, and what set_up_comm throws.
  static std::unique_ptr<NcclCommunicator> create(std::shared_ptr<CudaApi> cuda,
                                                  const std::shared_ptr<NcclApi>& nccl,
                                                  store::Store& store, const NcclOptions& options);
  // Healthy: waits for operations under way, at most abort_timeout. See Watchdog::~Watchdog; then
  // what it has on the device is freed, within free_timeout.
  ~NcclCommunicator() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string_view backend() const override { return "nccl"; }
  WorkerProgress* progress() override { return options_.progress.get(); }
  void follow_stream(const CurrentStream& current) override { caller_->follow(current); }

  WorkPtr all_reduce(TensorView buffer, ReduceOp op, const CallOptions& options) override;
  WorkPtr broadcast(TensorView buffer, int root, const CallOptions& options) override;
  WorkPtr all_gather(TensorView input, TensorView output, const CallOptions& options) override;
  WorkPtr reduce_scatter(TensorView input, TensorView output, ReduceOp op,
                         const CallOptions& options) override;
  WorkPtr send(TensorView buffer, int peer, const CallOptions& options) override;
  WorkPtr recv(TensorView buffer, int peer, const CallOptions& options) override;

  // Blocks the calling thread until every rank has come, whatever blocking_wait says.
  void barrier(const CallOptions& options) override;

  // ncclMemAlloc memory, registered, where the library has it; else cudaMalloc. Blocks until
  // it is zeroed. Its destructor waits for operations under way, aborted ones too, and for the
  // caller's current stream (NcclBuffer). Throws Error(kResourceExhausted) when the device is full.
  std::unique_ptr<CommBuffer> allocate(std::size_t size_bytes) override;

  std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const SplitOptions& options) override;

  void abort(std::string_view reason) override;

 private:
  using Launch = std::function<Result(Comm comm, Stream stream)>;

  // Takes `comm`. Errors begin with the group.
  static std::unique_ptr<NcclCommunicator> over(std::shared_ptr<CudaApi> cuda,
                                                const std::shared_ptr<NcclApi>& nccl,
                                                const NcclOptions& options, Comm comm);

  NcclCommunicator(std::shared_ptr<CudaApi> cuda, std::shared_ptr<NcclApi> nccl,
                   NcclOptions options, std::shared_ptr<CommGate> gate);

  // Runs `launch` on our stream behind the caller's, and watches it from before it starts.
  std::shared_ptr<Operation> start(OperationFacts facts, const std::string& what,
                                   const CallOptions& options, const Launch& launch);
  // launch_mutex_ is held and the device selected.
  std::shared_ptr<Operation> start_on_device(OperationFacts facts, const std::string& what,
                                             const CallOptions& options, const Launch& launch,
                                             bool captured);
  void end();  // as the destructor says
  // The same as a Work, waited for unless async.
  WorkPtr start_work(OperationFacts facts, const std::string& what, const CallOptions& options,
                     const Launch& launch);
  // nccl::split_comm, before which no operation starts here; a failure is set and thrown.
  Comm split_comm(const SplitPart& part);
  // Calls `launch` inside the gate; a failure is set and thrown.
  void call_nccl(std::string_view what, const Launch& launch);
  [[noreturn]] void fail(const Error& error);
  // Whether `what` becomes part of a CUDA graph. Throws Error(kInvalidArgument) where it would
  // break one.
  bool is_captured(const std::string& what) const;
  void refuse_capture(const char* operation) const;  // … of one that waits on the host
  [[noreturn]] void throw_gone();                    // the watchdog has taken the ncclComm_t

  Error in_group(const Error& error) const;  // the same, with the group before its text
  // Error(kInvalidArgument), with the group, this rank and the operation's name before `problem`.
  Error refused(const char* operation, const std::string& problem) const;
  void check_buffer(const char* operation, const TensorView& buffer) const;
  void check_rank(const char* operation, const char* role, int rank) const;
  void check_peer(const char* operation, int peer) const;
  // `whole` is size() parts; sharing memory is allowed where `part` is this rank's own in `whole`.
  void check_parts(const char* operation, const TensorView& part, const TensorView& whole) const;
  OperationFacts facts(CollectiveKind kind, const TensorView& buffer, ReduceOp op = ReduceOp::kSum,
                       int root = -1) const;

  // Constant after construction.
  const std::shared_ptr<CudaApi> cuda_;
  const std::shared_ptr<NcclApi> nccl_;
  const NcclOptions options_;
  const std::shared_ptr<Failure> failure_;      // second owner: each Work
  const std::shared_ptr<CommGate> gate_;        // second owners: the watchdog, each CommBuffer
  const std::shared_ptr<EventPool> events_;     // second owner: each operation
  const std::shared_ptr<CallerStream> caller_;  // second owners: each Work, drain_
  const std::shared_ptr<StreamDrain> drain_;    // second owner: each CommBuffer
  const std::uint32_t number_;                  // of this communicator in the flight recorder
  const bool locks_launches_;                   // DeviceLaunchLock
  Stream stream_ = nullptr;
  Event caller_ready_ = nullptr;    // what the caller's stream held when an operation started
  void* barrier_memory_ = nullptr;  // one element on the device

  std::map<std::string, int> num_splits_;  // by name; caller's thread only

  std::mutex launch_mutex_;
  std::uint64_t num_operations_ = 0;  // Guarded by launch_mutex_

  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace ddprun::nccl
