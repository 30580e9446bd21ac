// SPDX-License-Identifier: Apache-2.0
// load_cuda() over a runtime of the tests' own (fake_cudart.cc), for effects that no seam above it
// can show.
#include "worker_sdk/core/nccl/loader.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "common/env_names.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"

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

  // A thread that was strict before the call is strict again after it.
  begin(nullptr, cudaStreamCaptureModeGlobal);
  std::thread([&] {
    cuda->event_query(nullptr);
    raw_result = raw_query(nullptr);
  }).join();
  CHECK(raw_result == cudaErrorStreamCaptureUnsupported);
  CHECK(end(nullptr, nullptr) == cudaErrorStreamCaptureInvalidated);
}

// A library that is loaded while this lives. It is a copy of the fake under another name.
class Loaded {
 public:
  explicit Loaded(const std::string& path) {
    std::filesystem::copy_file(DDPRUN_FAKE_CUDART, path);
    handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(handle_ != nullptr);
  }
  ~Loaded() { ::dlclose(handle_); }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

 private:
  void* handle_;
};

nccl::LibrarySearch search_for(const std::string& name) {
  nccl::LibrarySearch search;
  search.what = "the test library";
  search.override_variable = "DDPRUN_TEST_LIBRARY";
  search.names = {name};
  return search;
}

TEST_CASE("DynamicLibrary: an override is refused beside another copy that is loaded") {
  const TempDirectory directory;
  const std::string first = directory.path("libthis.so.2"), second = directory.path("other.so");
  std::filesystem::copy_file(DDPRUN_FAKE_CUDART, second);
  const Loaded loaded(first);
  auto search = search_for("libthis.so.2");
  ::setenv("DDPRUN_TEST_LIBRARY", second.c_str(), 1);
  const Error error = error_of([&] { nccl::DynamicLibrary::open(search); });
  CHECK(error.code() == ErrorCode::kUnsupported);
  CHECK_THAT(error.what(), Contains("DDPRUN_TEST_LIBRARY=" + second + " can't be used beside " +
                                    first + ", which this process has loaded already"));
  CHECK_THAT(error.what(), Contains("LD_PRELOAD=" + second));
  search.may_be_second = true;
  CHECK(nccl::DynamicLibrary::open(search).path() == second);
  search.may_be_second = false;
  ::setenv("DDPRUN_TEST_LIBRARY", first.c_str(), 1);  // names the loaded library itself
  CHECK(nccl::DynamicLibrary::open(search).path() == first);
  ::unsetenv("DDPRUN_TEST_LIBRARY");
}

TEST_CASE("DynamicLibrary: a loaded copy with a hash in its name comes before a file") {
  const TempDirectory directory;
  const auto search = [&](const std::string& name) {
    auto result = search_for(name);
    result.folders = {directory.path()};
    return result;
  };
  const std::string hashed = directory.path("libhash-1a2b3c4d.so.2.28");
  const std::string file = directory.path("libhash.so.2"), other = directory.path("libnet.so.2");
  const Loaded loaded(hashed);
  std::filesystem::copy_file(DDPRUN_FAKE_CUDART, file);
  CHECK(nccl::DynamicLibrary::open(search("libhash.so.2")).path() == hashed);

  std::filesystem::copy_file(DDPRUN_FAKE_CUDART, other);
  // A plugin isn't the library, as libnccl-net.so isn't libnccl.
  const Loaded plugin(directory.path("libnet-plugin.so.2"));
  CHECK(nccl::DynamicLibrary::open(search("libnet.so.2")).path() == other);
}

}  // namespace
}  // namespace ddprun::test
