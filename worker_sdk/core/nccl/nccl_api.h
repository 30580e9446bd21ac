// SPDX-License-Identifier: Apache-2.0
// The NCCL functions that ddprun uses, as an interface. Behind it is the real library, opened by
// dlopen (load_nccl), or the tests' fake. Needs no NCCL header. Return values are NCCL's own; its
// manual has the semantics.
#pragma once

#include <cstddef>
#include <string>

#include "common/text.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/nccl_config.h"
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

// ncclUniqueId: opaque bytes, valid for one communicator.
struct UniqueId {
  static constexpr std::size_t kSizeBytes = 128;
  char bytes[kSizeBytes] = {};
};

using Comm = struct OpaqueComm*;      // ncclComm_t
using Stream = struct OpaqueStream*;  // cudaStream_t; nullptr: the legacy default stream

// The oldest library that has what NcclCommunicator needs (ncclCommSplit).
inline constexpr int kMinVersion = 21800;

// NCCL's number (2 * 10000 + minor * 100 + patch) as "2.28.9".
inline std::string version_text(int version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// Communicators are blocking (config.blocking = 1): a call returns when the host has done its part.
// One thread at a time per communicator, comm_async_error and comm_abort included.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual int version() = 0;
  virtual std::string library() = 0;  // the file it was loaded from, for messages

  virtual Result get_unique_id(UniqueId* id) = 0;
  // The version that says which fields of an NcclConfig take effect.
  virtual int config_version() { return version(); }
  virtual Result comm_init_rank(Comm* comm, int size, const UniqueId& id, int rank,
                                const NcclConfig& config) = 0;
  // comm_init_rank() with several ids, each made by its own root (NCCL ≥ 2.23).
  virtual bool has_init_rank_scalable() = 0;
  virtual Result comm_init_rank_scalable(Comm* comm, int size, int rank, const UniqueId* ids,
                                         int num_ids, const NcclConfig& config) = 0;
  // The ranks of one color, ordered by key, then by rank, become a communicator. It has `comm`'s
  // configuration, and shares nothing with it.
  virtual Result comm_split(Comm comm, int color, int key, Comm* made) = 0;
  // Never blocks. kInProgress: NCCL works on something.
  virtual Result comm_async_error(Comm comm, Result* state) = 0;
  // Also flushes.
  virtual Result comm_destroy(Comm comm) = 0;
  virtual Result comm_abort(Comm comm) = 0;

  virtual Result all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                            ReduceOp op, Comm comm, Stream stream) = 0;
  virtual Result reduce(const void* input, void* output, std::size_t count, DType dtype,
                        ReduceOp op, int root, Comm comm, Stream stream) = 0;
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

  // The operations that this thread starts between these two are launched together by group_end.
  virtual Result group_start() = 0;
  virtual Result group_end() = 0;

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

// The CUDA runtime functions that the nccl communicator uses, as an interface. Behind it is the
// real runtime, opened by dlopen (load_cuda), or the tests' fake. Needs no CUDA header. Any thread.
using Event = struct OpaqueEvent*;  // cudaEvent_t

// cudaError_t. Only the values below are checked.
using CudaResult = int;
inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaNotReady = 600;
inline constexpr CudaResult kCudaCaptureImplicit = 906;

// `device` is the runtime's index. Functions without it act on the calling thread's device, as
// CUDA's do.
class CudaApi {
 public:
  virtual ~CudaApi() = default;

  virtual CudaResult device_count(int* count) = 0;
  virtual CudaResult get_device(int* device) = 0;
  virtual CudaResult set_device(int device) = 0;
  // Gives the UUID of the device or MIG slice: the same in every process that uses it, and
  // different on every other device.
  virtual CudaResult device_uuid(int device, std::string* uuid) = 0;
  // Gives "0000:3b:00.0", the GPU's; so all slices of a GPU have the same.
  virtual CudaResult device_pci_bus_id(int device, std::string* bus_id) = 0;
  // Gives major.minor, for example 9.0 for an H100.
  virtual CudaResult compute_capability(int device, int* major, int* minor) = 0;

  virtual CudaResult stream_create_high_priority(Stream* stream) = 0;  // non-blocking flag set
  virtual CudaResult stream_destroy(Stream stream) = 0;
  virtual CudaResult stream_synchronize(Stream stream) = 0;
  virtual CudaResult stream_wait_event(Stream stream, Event event) = 0;
  // Tells whether a graph is captured on the stream: launches there do not run now. Returns
  // kCudaCaptureImplicit for the legacy default stream if a stream that waits for it captures.
  virtual CudaResult stream_is_capturing(Stream stream, bool* is_capturing) = 0;

  // `is_timed`: event_elapsed() takes the event. An event that isn't timed costs less to record.
  virtual CudaResult event_create(Event* event, bool is_timed) = 0;
  virtual CudaResult event_destroy(Event event) = 0;
  virtual CudaResult event_record(Event event, Stream stream) = 0;
  // kCudaNotReady: work is still under way. Doesn't disturb another thread's capture; nor do the
  // two functions for memory below.
  virtual CudaResult event_query(Event event) = 0;
  // Gives the time between two events that have passed. Doesn't disturb captures, either.
  virtual CudaResult event_elapsed(float* milliseconds, Event begin, Event end) = 0;

  virtual CudaResult memory_allocate(void** data, std::size_t size_bytes) = 0;
  virtual CudaResult memory_free(void* data) = 0;
  virtual CudaResult memory_set(void* data, int byte, std::size_t size_bytes, Stream stream) = 0;
  virtual CudaResult memory_copy(void* to, const void* from, std::size_t size_bytes,
                                 Stream stream) = 0;  // either side may be host memory

  virtual std::string error_text(CudaResult result) = 0;
};

}  // namespace ddprun::nccl
