// SPDX-License-Identifier: Apache-2.0
// CudaApi over the real runtime. Compiled only if cuda_runtime_api.h is there. It uses functions
// whose binary interface is the same in CUDA 11, 12 and 13. The device's UUID comes from the
// driver: the runtime's cudaDeviceProp changes between versions.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "common/byte_text.h"
#include "common/env_names.h"
#include "worker_sdk/core/nccl/loader.h"

namespace ddprun::nccl {
namespace {

static_assert(kCudaSuccess == cudaSuccess);
static_assert(kCudaNotReady == cudaErrorNotReady);
static_assert(kCudaCaptureImplicit == cudaErrorStreamCaptureImplicit);

cudaStream_t raw(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t raw(Event event) { return reinterpret_cast<cudaEvent_t>(event); }

// libcuda.so.1 is part of the driver: a machine without a GPU has none.
class Driver {
 public:
  Driver() {
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return;
    init_ = reinterpret_cast<Init>(dlsym(handle, "cuInit"));
    get_ = reinterpret_cast<Get>(dlsym(handle, "cuDeviceGet"));
    uuid_ = reinterpret_cast<Uuid>(dlsym(handle, "cuDeviceGetUuid_v2"));
    if (uuid_ == nullptr) uuid_ = reinterpret_cast<Uuid>(dlsym(handle, "cuDeviceGetUuid"));
  }

  CudaResult uuid(int device, std::string* text) const {
    if (init_ == nullptr || get_ == nullptr || uuid_ == nullptr) return cudaErrorNotSupported;
    int handle = 0;
    unsigned char bytes[16] = {};
    int result = init_(0);
    if (result == 0) result = get_(&handle, device);
    if (result == 0) result = uuid_(bytes, handle);
    if (result != 0) return cudaErrorUnknown;
    *text = to_hex(bytes);
    return cudaSuccess;
  }

 private:
  using Init = int (*)(unsigned);
  using Get = int (*)(int*, int);
  using Uuid = int (*)(unsigned char*, int);  // CUuuid is 16 bytes

  Init init_ = nullptr;
  Get get_ = nullptr;
  Uuid uuid_ = nullptr;
};

// While it lives, this thread's calls are allowed beside a capture. Without it a query of the
// watchdog breaks the graph that the program captures in CUDA's strict (default) mode.
class Relaxed {
 public:
  using Exchange = cudaError_t (*)(cudaStreamCaptureMode*);

  explicit Relaxed(Exchange exchange) : exchange_(exchange) { exchange_(&mode_); }
  ~Relaxed() { exchange_(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  const Exchange exchange_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then the previous one
};

#define DDPRUN_CUDA(name, signature) \
  using Type_##name = signature;     \
  Type_##name name = reinterpret_cast<Type_##name>(library_.require(#name))

class LoadedCuda : public CudaApi {
 public:
  explicit LoadedCuda(const DynamicLibrary& library) : library_(library) {}

  CudaResult device_count(int* count) override { return cudaGetDeviceCount(count); }
  CudaResult get_device(int* device) override { return cudaGetDevice(device); }
  CudaResult set_device(int device) override { return cudaSetDevice(device); }
  CudaResult device_uuid(int device, std::string* uuid) override {
    return driver_.uuid(device, uuid);
  }
  CudaResult device_pci_bus_id(int device, std::string* bus_id) override {
    char text[32] = {};
    const auto result = cudaDeviceGetPCIBusId(text, sizeof text, device);
    *bus_id = text;
    return result;
  }
  CudaResult compute_capability(int device, int* major, int* minor) override {
    const auto result = cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device);
    if (result != cudaSuccess) return result;
    return cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device);
  }

  CudaResult stream_create_high_priority(Stream* stream) override {
    int least = 0;
    int greatest = 0;
    const auto result = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (result != cudaSuccess) return result;
    return cudaStreamCreateWithPriority(reinterpret_cast<cudaStream_t*>(stream),
                                        cudaStreamNonBlocking, greatest);
  }
  CudaResult stream_destroy(Stream stream) override { return cudaStreamDestroy(raw(stream)); }
  CudaResult stream_synchronize(Stream stream) override {
    return cudaStreamSynchronize(raw(stream));
  }
  CudaResult stream_wait_event(Stream stream, Event event) override {
    return cudaStreamWaitEvent(raw(stream), raw(event), 0);
  }
  CudaResult stream_is_capturing(Stream stream, bool* is_capturing) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const auto result = cudaStreamIsCapturing(raw(stream), &status);
    *is_capturing = status != cudaStreamCaptureStatusNone;  // also true for a broken capture
    return forget(result, cudaErrorStreamCaptureImplicit);
  }

  CudaResult event_create(Event* event, bool is_timed) override {
    return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event),
                                    is_timed ? cudaEventDefault : cudaEventDisableTiming);
  }
  CudaResult event_destroy(Event event) override { return cudaEventDestroy(raw(event)); }
  CudaResult event_record(Event event, Stream stream) override {
    return cudaEventRecord(raw(event), raw(stream));
  }
  CudaResult event_query(Event event) override {
    const Relaxed relaxed(cudaThreadExchangeStreamCaptureMode);
    return forget(cudaEventQuery(raw(event)), cudaErrorNotReady);
  }
  CudaResult event_elapsed(float* milliseconds, Event begin, Event end) override {
    const Relaxed relaxed(cudaThreadExchangeStreamCaptureMode);
    return cudaEventElapsedTime(milliseconds, raw(begin), raw(end));
  }

  // Clears a result that is an answer, not a failure. Otherwise the thread's next user of
  // cudaGetLastError takes it for a failure.
  cudaError_t forget(cudaError_t result, cudaError_t answer) {
    if (result == answer) cudaGetLastError();
    return result;
  }

  CudaResult memory_allocate(void** data, std::size_t size_bytes) override {
    const Relaxed relaxed(cudaThreadExchangeStreamCaptureMode);
    return cudaMalloc(data, size_bytes);
  }
  CudaResult memory_free(void* data) override {
    const Relaxed relaxed(cudaThreadExchangeStreamCaptureMode);
    return cudaFree(data);
  }
  CudaResult memory_set(void* data, int byte, std::size_t size_bytes, Stream stream) override {
    return cudaMemsetAsync(data, byte, size_bytes, raw(stream));
  }
  CudaResult memory_copy(void* to, const void* from, std::size_t size_bytes,
                         Stream stream) override {
    return cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, raw(stream));
  }

  std::string error_text(CudaResult result) override {
    return cudaGetErrorString(static_cast<cudaError_t>(result));
  }

 private:
  const DynamicLibrary library_;
  const Driver driver_;
  DDPRUN_CUDA(cudaGetDeviceCount, cudaError_t (*)(int*));
  DDPRUN_CUDA(cudaGetDevice, cudaError_t (*)(int*));
  DDPRUN_CUDA(cudaSetDevice, cudaError_t (*)(int));
  DDPRUN_CUDA(cudaDeviceGetAttribute, cudaError_t (*)(int*, cudaDeviceAttr, int));
  DDPRUN_CUDA(cudaDeviceGetPCIBusId, cudaError_t (*)(char*, int, int));
  DDPRUN_CUDA(cudaDeviceGetStreamPriorityRange, cudaError_t (*)(int*, int*));
  DDPRUN_CUDA(cudaStreamCreateWithPriority, cudaError_t (*)(cudaStream_t*, unsigned, int));
  DDPRUN_CUDA(cudaStreamDestroy, cudaError_t (*)(cudaStream_t));
  DDPRUN_CUDA(cudaStreamSynchronize, cudaError_t (*)(cudaStream_t));
  DDPRUN_CUDA(cudaStreamWaitEvent, cudaError_t (*)(cudaStream_t, cudaEvent_t, unsigned));
  DDPRUN_CUDA(cudaStreamIsCapturing, cudaError_t (*)(cudaStream_t, cudaStreamCaptureStatus*));
  DDPRUN_CUDA(cudaThreadExchangeStreamCaptureMode, Relaxed::Exchange);
  DDPRUN_CUDA(cudaGetLastError, cudaError_t (*)());
  DDPRUN_CUDA(cudaEventCreateWithFlags, cudaError_t (*)(cudaEvent_t*, unsigned));
  DDPRUN_CUDA(cudaEventDestroy, cudaError_t (*)(cudaEvent_t));
  DDPRUN_CUDA(cudaEventRecord, cudaError_t (*)(cudaEvent_t, cudaStream_t));
  DDPRUN_CUDA(cudaEventQuery, cudaError_t (*)(cudaEvent_t));
  DDPRUN_CUDA(cudaEventElapsedTime, cudaError_t (*)(float*, cudaEvent_t, cudaEvent_t));
  DDPRUN_CUDA(cudaMalloc, cudaError_t (*)(void**, std::size_t));
  DDPRUN_CUDA(cudaFree, cudaError_t (*)(void*));
  DDPRUN_CUDA(cudaMemsetAsync, cudaError_t (*)(void*, int, std::size_t, cudaStream_t));
  DDPRUN_CUDA(cudaMemcpyAsync,
              cudaError_t (*)(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t));
  DDPRUN_CUDA(cudaGetErrorString, const char* (*)(cudaError_t));
};

#undef DDPRUN_CUDA

}  // namespace

std::shared_ptr<CudaApi> load_cuda() {
  LibrarySearch search;
  search.what = "the CUDA runtime";
  search.override_variable = env::kCudartLibrary;
  search.names = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"};
  search.may_be_second = true;  // runtimes of one process share the driver's context
  search.folders = {DDPRUN_CUDART_LIBRARY_DIR};
  return std::make_shared<LoadedCuda>(DynamicLibrary::open(search));
}

}  // namespace ddprun::nccl
