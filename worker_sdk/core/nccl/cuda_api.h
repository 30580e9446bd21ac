// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime functions that the nccl communicator uses, as a seam: the real runtime behind
// dlopen (load_cuda) or the tests' fake. Needs no CUDA header. Any thread.
#pragma once

#include <cstddef>
#include <string>

#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

using Event = struct OpaqueEvent*;  // cudaEvent_t

// cudaError_t. Only these values are looked at.
using CudaResult = int;
inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaNotReady = 600;
inline constexpr CudaResult kCudaCaptureImplicit = 906;

// `device` is the runtime's index; the others act on the calling thread's device, as CUDA's do.
class CudaApi {
 public:
  virtual ~CudaApi() = default;

  virtual CudaResult device_count(int* count) = 0;
  virtual CudaResult get_device(int* device) = 0;
  virtual CudaResult set_device(int device) = 0;
  // Of the device or MIG slice: the same in every process that uses it, on no other device.
  virtual CudaResult device_uuid(int device, std::string* uuid) = 0;
  // "0000:3b:00.0": of the GPU, so the slices of one have the same.
  virtual CudaResult device_pci_bus_id(int device, std::string* bus_id) = 0;
  // major.minor, as 9.0 of an H100.
  virtual CudaResult compute_capability(int device, int* major, int* minor) = 0;

  virtual CudaResult stream_create_high_priority(Stream* stream) = 0;  // non-blocking flag set
  virtual CudaResult stream_destroy(Stream stream) = 0;
  virtual CudaResult stream_synchronize(Stream stream) = 0;
  virtual CudaResult stream_wait_event(Stream stream, Event event) = 0;
  // A graph is captured on it: what is launched there does not run now. kCudaCaptureImplicit: it is
  // the legacy default stream, and a stream that waits for that one captures.
  virtual CudaResult stream_is_capturing(Stream stream, bool* is_capturing) = 0;

  virtual CudaResult event_create(Event* event) = 0;  // no timing
  virtual CudaResult event_destroy(Event event) = 0;
  virtual CudaResult event_record(Event event, Stream stream) = 0;
  // kCudaNotReady: work is still under way. Leaves alone what another thread captures, as do the
  // two of memory below.
  virtual CudaResult event_query(Event event) = 0;

  virtual CudaResult memory_allocate(void** data, std::size_t size_bytes) = 0;
  virtual CudaResult memory_free(void* data) = 0;
  virtual CudaResult memory_set(void* data, int byte, std::size_t size_bytes, Stream stream) = 0;
  virtual CudaResult memory_copy(void* to, const void* from, std::size_t size_bytes,
                                 Stream stream) = 0;  // either side may be host memory

  virtual std::string error_text(CudaResult result) = 0;
};

}  // namespace ddprun::nccl
