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
#include <vector>

#include "worker_sdk/core/tensor_view.h"

namespace ddprun {

class WorkerProgress;

// kAverage is the sum divided by size(). On the host backend integers wrap and divide towards zero.
// Floats of 8 and 16 bits are summed as float32, rounded once (all_reduce of N nodes: N times).
// Those of 8 bits are rounded to their largest number at most, as by NCCL. Both kMin and kMax pass
// NaN over if a rank has a number, as NCCL does: a NaN that must be seen is summed. On bool a sum
// is "any", as is kMax, and a product is "all", as is kMin; there is no average.
enum class ReduceOp { kSum, kAverage, kMin, kMax, kProduct };

const char* to_string(ReduceOp op);

// One operation under way. Dropping it without wait() is allowed; its buffers must then live until
// the communicator is destroyed.
class Work {
 public:
  virtual ~Work() = default;

  // True once the operation ended, well or badly. Never blocks.
  virtual bool is_completed() = 0;

  // Host: returns when the result is in the buffer. NCCL: makes the caller's current stream wait
  // for it (CommunicatorOptions::blocking_wait: the thread, too). Throws the operation's error.
  virtual void wait() = 0;
};

// Shared with the communicator, which completes it from its own thread.
using WorkPtr = std::shared_ptr<Work>;

// A communicator's default: of each operation, and until all ranks have joined it.
inline constexpr std::chrono::milliseconds kDefaultTimeout{300'000};

struct CallOptions {
  bool async = false;  // false: wait() has already been done when the call returns
  std::optional<std::chrono::milliseconds> timeout{};  // default: the communicator's
  // all_reduce of float32 (sum, average) where narrows(): elements travel as float16 or bfloat16,
  // are added as float32, and the results are such numbers. An average is divided first.
  std::optional<DType> wire{};
  int tag = 0;  // send and recv, host backend alone: a message goes to a receive of its tag
};

struct SplitOptions {
  std::string name;  // of the groups, in messages and keys: "tp"; not empty
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
// at a time per communicator (a second one that is seen gets kInvalidArgument); asynchronous
// operations complete in the order they were issued. Results are bit-equal on all ranks and in all
// runs with the same world (host backend).
//
// Buffers are contiguous and, unless a name says otherwise, changed in place. Input and output
// share no memory, with one exception: of all_gather's output, or reduce_scatter's input, this
// rank's own part may be the other buffer. An operation owns its buffers until wait() has returned;
// with NCCL, until the caller's stream has passed that point. After an error NCCL may still write
// to them until the communicator is destroyed.
//
// Errors, from the call or from Work::wait():
//   kInvalidArgument    bad root, peer, count, dtype or device
//   kTimeout            names the ranks that did not come, where that can be found out
//   kPeerLost           names the rank that died, aborted or gave up, and why
//   kProtocol           the ranks called different operations; names both (host backend)
//   kAborted            abort() was called here
//   kResourceExhausted, kSystem   memory, the device, CUDA or NCCL refused, with their words
// After any but the first, only abort() and destruction are useful.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;  // "host" or "nccl"

  // Counts this worker's steps; null: nobody does. It lives as long as the communicator.
  virtual WorkerProgress* progress() { return nullptr; }

  // Whether all_reduce() takes CallOptions::wire; the same on every rank.
  virtual bool narrows() const { return false; }

  // nccl: from now on `current` is asked which stream is the caller's. The thread that starts or
  // waits for an operation, or drops a CommBuffer, asks it. No effect where that is known already
  // (CommunicatorOptions::current_stream, an earlier call), nor on the host backend. Whoever hands
  // over LibTorch's tensors calls it (worker_sdk/torch/current_stream.h).
  virtual void follow_stream(const CurrentStream& /*current*/) {}

  // nccl: whether the caller's current stream captures a CUDA graph, of which operations that start
  // now become part.
  virtual bool captures_graph() const { return false; }

  // After: every rank's buffer holds op over all ranks' buffers.
  virtual WorkPtr all_reduce(TensorView buffer, ReduceOp op, const CallOptions& options = {}) = 0;

  // After: root's buffer holds op over all ranks' buffers; the others' hold nothing of use.
  virtual WorkPtr reduce(TensorView buffer, ReduceOp op, int root,
                         const CallOptions& options = {}) = 0;

  // After: every rank's buffer holds root's.
  virtual WorkPtr broadcast(TensorView buffer, int root, const CallOptions& options = {}) = 0;

  // output.count = size() * input.count; rank r's input lands at element r * input.count.
  virtual WorkPtr all_gather(TensorView input, TensorView output,
                             const CallOptions& options = {}) = 0;

  // input.count = size() * output.count; rank r receives elements from r * output.count on.
  virtual WorkPtr reduce_scatter(TensorView input, TensorView output, ReduceOp op,
                                 const CallOptions& options = {}) = 0;

  // Point to point; matched with the peer's call by order per pair of ranks and tag.
  virtual WorkPtr send(TensorView buffer, int peer, const CallOptions& options = {}) = 0;
  virtual WorkPtr recv(TensorView buffer, int peer, const CallOptions& options = {}) = 0;

  // Host backend alone, not in a group: the next message of this tag, whoever sends it. `*source`
  // is the sender once the operation has ended; it lives as long as the buffer.
  virtual WorkPtr recv_any(TensorView buffer, int* source, const CallOptions& options = {});

  // Starts what `calls` asks of this communicator together, once `calls` has returned: operations
  // above, none inside another group. Messages don't wait for one another: ranks may send to each
  // other whatever the size, and to themselves. nccl: one ncclGroup, one launch. Inside, calls
  // return null and `async` has no effect; the Work that this returns is theirs. If `calls` throws,
  // nothing has been started. worker_sdk/core/exchange.h has the usual groups.
  virtual WorkPtr group(const std::function<void()>& calls, bool async = false) = 0;

  // Returns when every rank has called it; `async` has no effect.
  virtual void barrier(const CallOptions& options = {}) = 0;

  // Collective: every rank asks for the same size at the same point. 64-byte aligned, zeroed.
  // Throws kInvalidArgument for more than there can be, and nothing has happened. Any other error
  // (kResourceExhausted, kSystem: no memory, no descriptors) ends the communicator on every rank.
  virtual std::unique_ptr<CommBuffer> allocate(std::size_t size_bytes) = 0;

  // The communicator of a group of these ranks: ranks[i] becomes rank i of it; this rank is among
  // them. Collective: every rank of this communicator calls it with its own group, which shares no
  // rank with another one. Splits of one name come in the same order. Host: waits for the ranks of
  // its own group only; nccl (ncclCommSplit): for all. Has this one's backend, deadlines and
  // stream, and lives on without it; the abort of one is not the other's. Errors say which group
  // and ranks of the job they are about. Throws kInvalidArgument for ranks that can't be, and what
  // Session::make_communicator throws; nccl: a split that failed once it had begun ends this
  // communicator, too.
  virtual std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                              const SplitOptions& options) = 0;

  // Ends every operation under way and to come with kAborted, here and (as kPeerLost) on the other
  // ranks. Any thread; idempotent; never blocks.
  virtual void abort(std::string_view reason) = 0;
};

}  // namespace ddprun
