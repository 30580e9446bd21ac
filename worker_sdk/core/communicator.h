// SPDX-License-Identifier: Apache-2.0
// Collectives among the ranks of one communicator. Backends: `host` (shared memory inside a node,
// TCP between nodes) and `nccl`, chosen at run time (Session::make_communicator).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/progress_page.h"
#include "worker_sdk/core/tensor_view.h"

namespace ddprun {

class WorkerProgress;

// kAverage is the sum divided by size(). On the host backend integers wrap and divide towards zero.
// Floats of 8 and 16 bits are summed as float32, rounded once (all_reduce of N nodes: N times).
// Floats of 8 bits don't overflow but end at their largest number, as with NCCL. Both kMin and kMax
// ignore a NaN if another rank has a number, as NCCL does: use a sum to notice a NaN. On bool, kSum
// and kMax mean "any", kProduct and kMin mean "all"; there is no average.
enum class ReduceOp { kSum, kAverage, kMin, kMax, kProduct };

const char* to_string(ReduceOp op);

// One operation under way. Dropping it without wait() is allowed; its buffers must then live until
// the communicator is destroyed.
class Work {
 public:
  virtual ~Work() = default;

  // Returns true once the operation has ended, with or without success. Never blocks.
  virtual bool is_completed() = 0;

  // Host: returns when the result is in the buffer. NCCL: makes the caller's current stream wait
  // for it, and with CommunicatorOptions::blocking_wait the thread, too. Throws the operation's
  // error.
  virtual void wait() = 0;
};

// Shared with the communicator, which completes it from its own thread.
using WorkPtr = std::shared_ptr<Work>;

// A communicator's default deadline: for each operation, and for all ranks to join it.
inline constexpr std::chrono::milliseconds kDefaultTimeout{300'000};

struct CallOptions {
  bool async = false;  // false: wait() has already been done when the call returns
  std::optional<std::chrono::milliseconds> timeout{};  // default: the communicator's
  // Only for an all_reduce of float32 (sum, average) where narrows() is true. Elements travel as
  // float16 or bfloat16 and are added as float32; the results are rounded to that type. An average
  // is divided first.
  std::optional<DType> wire{};
  int tag = 0;  // send and recv, only host backend: a receive gets messages of its tag
};

// One operation, as its caller asks for it. An operation in place has its buffer twice.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kNone;
  TensorView input{}, output{};
  ReduceOp op = ReduceOp::kSum;
  int root = 0;  // of a message: the peer

  bool is_message() const { return kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv; }
  bool has_parts() const {
    return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
  }
  // Return the buffer of one rank's elements, and the one of all ranks' if has_parts().
  const TensorView& part() const { return kind == CollectiveKind::kReduceScatter ? output : input; }
  const TensorView& whole() const {
    return kind == CollectiveKind::kReduceScatter ? input : output;
  }
};

struct SplitOptions {
  std::string name;  // the groups' name in messages and keys: "tp"; not empty
  std::optional<std::chrono::milliseconds> init_timeout{};  // default: the communicator's
};

// Memory that this communicator moves without a copy (host: the node's shared arena; nccl:
// ncclMemAlloc). Must not outlive the communicator.
class CommBuffer {
 public:
  virtual ~CommBuffer() = default;
  virtual void* data() = 0;
  virtual std::size_t size_bytes() const = 0;
};

// The calling thread's current CUDA stream (a cudaStream_t) on a device.
using CurrentStream = std::function<void*(int device_index)>;

// Every rank calls the same operations in the same order with the same sizes and dtypes. One thread
// at a time per communicator (a second one that is seen gets kInvalidArgument, or waits with
// HostOptions::several_threads); asynchronous operations complete in the order they were issued.
// Results are bit-equal on all ranks and in all runs with the same world (host backend).
//
// Buffers are contiguous and, unless called input or output, changed in place. Input and output
// share no memory, with one exception: this rank's own part of all_gather's output, or of
// reduce_scatter's input, may be the other buffer. An operation owns its buffers until wait() has
// returned; with NCCL, until the caller's stream has passed that point. After an error NCCL may
// still write to them until the communicator is destroyed: keep() them.
//
// Errors, from the call or from Work::wait():
//   kInvalidArgument    bad root, peer, count, dtype or device
//   kTimeout            names the ranks that did not come, where that can be found out
//   kPeerLost           names the rank that died, aborted or gave up, and why
//   kProtocol           the ranks called different operations; names both (host backend)
//   kAborted            abort() was called here
//   kResourceExhausted, kSystem   memory, the device, CUDA or NCCL refused, with their words
// After any error except kInvalidArgument, only abort() and destruction are useful.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;  // "host" or "nccl"

  // Returns the object that counts this worker's steps, or null. It lives as long as the
  // communicator.
  virtual WorkerProgress* progress() { return nullptr; }

  // Whether all_reduce() takes CallOptions::wire; the same on every rank.
  virtual bool narrows() const { return false; }

  // nccl: from now on `current` tells which stream is the caller's. The thread that starts or waits
  // for an operation, or drops a CommBuffer, calls it. No effect if the stream is known already
  // (CommunicatorOptions::current_stream, an earlier call), nor on the host backend. Code that
  // hands over LibTorch's tensors calls this function (worker_sdk/torch/current_stream.h).
  virtual void follow_stream(const CurrentStream& /*current*/) {}

  // nccl: returns whether the caller's current stream captures a CUDA graph. Operations that start
  // now become part of that graph.
  virtual bool captures_graph() const { return false; }

  // Afterwards every rank's buffer holds op over all ranks' buffers.
  WorkPtr all_reduce(TensorView buffer, ReduceOp op, const CallOptions& options = {}) {
    return run({CollectiveKind::kAllReduce, buffer, buffer, op}, options);
  }

  // Afterwards root's buffer holds op over all ranks' buffers; the others' hold nothing of use.
  WorkPtr reduce(TensorView buffer, ReduceOp op, int root, const CallOptions& options = {}) {
    return run({CollectiveKind::kReduce, buffer, buffer, op, root}, options);
  }

  // Afterwards every rank's buffer holds root's.
  WorkPtr broadcast(TensorView buffer, int root, const CallOptions& options = {}) {
    return run({CollectiveKind::kBroadcast, buffer, buffer, ReduceOp::kSum, root}, options);
  }

  // output.count = size() * input.count; rank r's input lands at element r * input.count.
  WorkPtr all_gather(TensorView input, TensorView output, const CallOptions& options = {}) {
    return run({CollectiveKind::kAllGather, input, output}, options);
  }

  // input.count = size() * output.count; rank r receives elements from r * output.count on.
  WorkPtr reduce_scatter(TensorView input, TensorView output, ReduceOp op,
                         const CallOptions& options = {}) {
    return run({CollectiveKind::kReduceScatter, input, output, op}, options);
  }

  // Point to point. For each pair of ranks and tag, the n-th send goes to the n-th receive.
  WorkPtr send(TensorView buffer, int peer, const CallOptions& options = {}) {
    return run({CollectiveKind::kSend, buffer, buffer, ReduceOp::kSum, peer}, options);
  }
  WorkPtr recv(TensorView buffer, int peer, const CallOptions& options = {}) {
    return run({CollectiveKind::kRecv, buffer, buffer, ReduceOp::kSum, peer}, options);
  }

  // Does what one of the calls above asks for.
  virtual WorkPtr run(const CollectiveCall& call, const CallOptions& options) = 0;

  // Host backend only, not in a group: receives the next message of this tag from any rank.
  // `*source` is the sender once the operation has ended; it must live as long as the buffer.
  virtual WorkPtr recv_any(TensorView buffer, int* source, const CallOptions& options = {});

  // Calls `calls`, then starts together all that it asked of this communicator: operations above,
  // no group inside another. Messages don't wait for one another: ranks may send to each other, and
  // to themselves, whatever the size. nccl: one ncclGroup, one launch. Inside, calls return null
  // and `async` has no effect; the Work that group() returns stands for all. If `calls` throws,
  // nothing has been started. worker_sdk/core/exchange.h has the usual groups.
  virtual WorkPtr group(const std::function<void()>& calls, bool async = false) = 0;

  // Returns when every rank has called it; `async` has no effect.
  virtual void barrier(const CallOptions& options = {}) = 0;

  // Collective: every rank asks for the same size at the same point. The memory is 64-byte aligned
  // and zeroed. Throws kInvalidArgument, without effect, for a size that can't exist. Any other
  // error (kResourceExhausted, kSystem: no memory, no descriptors) ends the communicator on every
  // rank.
  virtual std::unique_ptr<CommBuffer> allocate(std::size_t size_bytes) = 0;

  // Returns the communicator of a group of these ranks: ranks[i] becomes its rank i; this rank is
  // among them. Collective: every rank of this communicator calls it with its own group; groups
  // share no rank. Splits of one name come in the same order. Host: waits for the ranks of its own
  // group only; nccl (ncclCommSplit): for all. The group has this communicator's backend, deadlines
  // and stream, and may outlive it. The abort of one doesn't abort the other. Errors say which
  // group and ranks of the job they are about. Throws kInvalidArgument for ranks that can't be, and
  // what Session::make_communicator throws. nccl: a split that failed once it had begun ends this
  // communicator, too.
  virtual std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                              const SplitOptions& options) = 0;

  // Ends every operation, under way or to come, with kAborted here and kPeerLost on the other
  // ranks. Any thread; idempotent; never blocks.
  virtual void abort(std::string_view reason) = 0;

  // Owns `memory` until this communicator is destroyed, and for ever if its operations can't be
  // ended. It is for the buffers of an operation that failed, or that nobody waited for.
  virtual void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

 protected:
  // The device may still write to what was kept: it is never freed.
  void leave_kept_behind();

 private:
  // It goes after all that the derived class has: its destructor ends the operations.
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace ddprun
