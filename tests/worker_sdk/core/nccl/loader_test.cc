// SPDX-License-Identifier: Apache-2.0
// load_cuda() over a runtime of the tests' own (fake_cudart.cc): what no seam above it can show.
#include "worker_sdk/core/nccl/loader.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <thread>

#include "common/env_names.h"
#include "tests/support/catch.h"

namespace ddprun::test {
namespace {

template <typename Function>
Function* fake(const char* name) {
  void* library = ::dlopen(DDPRUN_FAKE_CUDART, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

std::shared_ptr<nccl::CudaApi> load_fake() {
  ::setenv(env::kCudartLibrary, DDPRUN_FAKE_CUDART, 1);
  auto cuda = nccl::load_cuda();
  ::unsetenv(env::kCudartLibrary);
  return cuda;
}

TEST_CASE("load_cuda: another thread's queries and memory leave a graph's capture whole") {
  const auto cuda = load_fake();
  const auto begin = fake<decltype(cudaStreamBeginCapture)>("cudaStreamBeginCapture");
  const auto end = fake<decltype(cudaStreamEndCapture)>("cudaStreamEndCapture");
  const auto raw_query = fake<decltype(cudaEventQuery)>("cudaEventQuery");
  const auto call = GENERATE(0, 1, 2);
  CAPTURE(call);

  bool is_capturing = true;
  CHECK(cuda->stream_is_capturing(nullptr, &is_capturing) == nccl::kCudaSuccess);
  CHECK(!is_capturing);
  begin(nullptr, cudaStreamCaptureModeGlobal);
  CHECK(cuda->stream_is_capturing(nullptr, &is_capturing) == nccl::kCudaSuccess);
  CHECK(is_capturing);
  nccl::CudaResult result = -1;
  cudaError_t raw_result = cudaSuccess;
  std::thread([&] {
    void* data = nullptr;
    if (call == 0) result = cuda->event_query(nullptr);
    if (call == 1) result = cuda->memory_allocate(&data, 1);
    if (call == 2) result = cuda->memory_free(nullptr);
  }).join();
  CHECK(result == nccl::kCudaSuccess);
  CHECK(end(nullptr, nullptr) == cudaSuccess);

  // And a thread that was strict before is so again.
  begin(nullptr, cudaStreamCaptureModeGlobal);
  std::thread([&] {
    cuda->event_query(nullptr);
    raw_result = raw_query(nullptr);
  }).join();
  CHECK(raw_result == cudaErrorStreamCaptureUnsupported);
  CHECK(end(nullptr, nullptr) == cudaErrorStreamCaptureInvalidated);
}

}  // namespace
}  // namespace ddprun::test
