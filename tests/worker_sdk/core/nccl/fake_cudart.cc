// SPDX-License-Identifier: Apache-2.0
// A CUDA runtime without a GPU, for load_cuda()'s own tests. While a thread captures a graph (mode
// global, the default), it is as strict to other threads as the real one. Other calls succeed and
// do nothing.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

std::atomic<bool> is_capturing{false};
std::atomic<bool> is_broken{false};
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Called by each function that CUDA holds to be unsafe beside a capture.
cudaError_t unsafe() {
  if (!is_capturing || thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  is_broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  const auto before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  is_capturing = true;
  is_broken = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) {
  is_capturing = false;
  return is_broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = !is_capturing ? cudaStreamCaptureStatusNone
            : is_broken   ? cudaStreamCaptureStatusInvalidated
                          : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) { return unsafe(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 0, unsafe();
}
cudaError_t cudaMalloc(void** data, std::size_t) {
  *data = nullptr;
  return unsafe();
}
cudaError_t cudaFree(void*) { return unsafe(); }

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = 9, cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int) {
  return std::strncpy(text, "0000:3b:00.0", static_cast<std::size_t>(size)), cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -1, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake runtime"; }

}  // extern "C"
