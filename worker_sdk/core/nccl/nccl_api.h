// SPDX-License-Identifier: Apache-2.0
// The NCCL functions that ddprun uses, as a seam: the real library behind dlopen (load_nccl) or the
// tests' fake. Needs no NCCL header. Return values are NCCL's own; semantics are its manual's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/tensor_view.h"

namespace ddprun::nccl {

// ncclResult_t, value for value.
enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclUniqueId: opaque bytes, good for one communicator.
struct UniqueId {
  static constexpr std::size_t kSizeBytes = 128;
  char bytes[kSizeBytes] = {};
};

using Comm = struct OpaqueComm*;      // ncclComm_t
using Stream = struct OpaqueStream*;  // cudaStream_t; nullptr: the legacy default stream

// Oldest library that has what NcclCommunicator can't do without (ncclCommSplit).
inline constexpr int kMinVersion = 21800;

// NCCL's number (2 * 10000 + minor * 100 + patch) as "2.28.9".
std::string version_text(int version);

// Communicators are blocking (config.blocking = 1): a call returns when the host has done its part.
// One thread at a time per communicator, comm_async_error and comm_abort included.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual int version() = 0;
  virtual std::string library() = 0;  // the file it was loaded from, for messages

  virtual Result get_unique_id(UniqueId* id) = 0;
  virtual Result comm_init_rank(Comm* comm, int size, const UniqueId& id, int rank) = 0;
  // Several ids, each made by its own root (NCCL ≥ 2.23).
  virtual bool has_init_rank_scalable() = 0;
  virtual Result comm_init_rank_scalable(Comm* comm, int size, int rank, const UniqueId* ids,
                                         int num_ids) = 0;
  // The ranks of one color, ordered by key, then by rank, become a communicator with `comm`'s
  // configuration, which shares nothing with it.
  virtual Result comm_split(Comm comm, int color, int key, Comm* made) = 0;
  // Never blocks. kInProgress: NCCL works on something.
  virtual Result comm_async_error(Comm comm, Result* state) = 0;
  // Flushes, too.
  virtual Result comm_destroy(Comm comm) = 0;
  virtual Result comm_abort(Comm comm) = 0;

  virtual Result all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                            ReduceOp op, Comm comm, Stream stream) = 0;
  virtual Result broadcast(const void* input, void* output, std::size_t count, DType dtype,
                           int root, Comm comm, Stream stream) = 0;
  virtual Result all_gather(const void* input, void* output, std::size_t input_count, DType dtype,
                            Comm comm, Stream stream) = 0;
  virtual Result reduce_scatter(const void* input, void* output, std::size_t output_count,
                                DType dtype, ReduceOp op, Comm comm, Stream stream) = 0;
  virtual Result send(const void* input, std::size_t count, DType dtype, int peer, Comm comm,
                      Stream stream) = 0;
  virtual Result recv(void* output, std::size_t count, DType dtype, int peer, Comm comm,
                      Stream stream) = 0;

  // Memory that NCCL moves without a copy (NCCL ≥ 2.19).
  virtual bool has_mem_alloc() = 0;
  virtual Result mem_alloc(void** data, std::size_t size_bytes) = 0;
  virtual Result mem_free(void* data) = 0;
  virtual Result comm_register(Comm comm, void* data, std::size_t size_bytes, void** handle) = 0;
  virtual Result comm_deregister(Comm comm, void* handle) = 0;

  virtual std::string error_text(Result result) = 0;
  // Details of the last failure; `comm` may be nullptr. May be empty.
  virtual std::string last_error(Comm comm) = 0;
};

}  // namespace ddprun::nccl
