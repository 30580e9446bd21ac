// SPDX-License-Identifier: Apache-2.0
// load_cuda() and load_nccl() over libraries of the tests' own (fake_cudart.cc, fake_libnccl.cc),
// for effects that no seam above them can show.
#include "worker_sdk/core/nccl/loader.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "common/env_names.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"
#include "tests/worker_sdk/core/nccl/fake_libnccl.h"

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

// An NCCL of the tests' own, as load_nccl() finds it.
std::shared_ptr<nccl::NcclApi> load_nccl_from(const char* file) {
  ::setenv(env::kNcclLibrary, file, 1);
  const auto unset = [] { ::unsetenv(env::kNcclLibrary); };
  try {
    auto library = nccl::load_nccl();
    unset();
    return library;
  } catch (...) {
    unset();
    throw;
  }
}

FakeLibncclCalls& calls_of(const char* file) {
  void* library = ::dlopen(file, RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  void* const function = ::dlsym(library, "fake_libnccl_calls");
  return *reinterpret_cast<FakeLibncclCallsFunction*>(function)();
}

TEST_CASE("load_nccl: an environment that wants other than blocking communicators is refused") {
  ::setenv(env::kNcclCommBlocking, "0", 1);
  const Error error = error_of([] { load_nccl_from(DDPRUN_FAKE_LIBNCCL); });
  CHECK(std::string(::getenv(env::kNcclCommBlocking)) == "0");  // threads may be reading it
  ::unsetenv(env::kNcclCommBlocking);
  CHECK(error.code() == ErrorCode::kUnsupported);
  CHECK(std::string(error.what()) ==
        "NCCL_COMM_BLOCKING=0: only blocking communicators are used: unset it");
}

TEST_CASE("load_nccl: communicators are blocking, by their configuration or the environment's") {
  const auto library = load_nccl_from(DDPRUN_FAKE_LIBNCCL);
  FakeLibncclCalls& calls = calls_of(DDPRUN_FAKE_LIBNCCL);
  const bool is_scalable = GENERATE(false, true), has_environment = GENERATE(false, true);
  CAPTURE(is_scalable, has_environment);
  if (has_environment) ::setenv(env::kNcclCommBlocking, "1", 1);
  nccl::Comm comm = nullptr;
  const nccl::UniqueId id;
  // The thread that makes a communicator ends at once, and NCCL's job of a non-blocking one with
  // it.
  std::thread([&] {
    if (is_scalable) {
      library->comm_init_rank_scalable(&comm, 1, 0, &id, 1, {});
    } else {
      library->comm_init_rank(&comm, 1, id, 0, {});
    }
  }).join();
  CHECK(calls.is_blocking);
  nccl::Result state = nccl::Result::kInProgress;
  CHECK(library->comm_async_error(comm, &state) == nccl::Result::kSuccess);
  CHECK(state == nccl::Result::kSuccess);
  CHECK(library->comm_destroy(comm) == nccl::Result::kSuccess);
  ::unsetenv(env::kNcclCommBlocking);
}

TEST_CASE("load_nccl: a library before the least version is one line with both versions") {
  ::setenv("FAKE_NCCL_VERSION", "21705", 1);
  const Error error = error_of([] { load_nccl_from(DDPRUN_FAKE_LIBNCCL_TOO_OLD); });
  ::unsetenv("FAKE_NCCL_VERSION");
  CHECK(error.code() == ErrorCode::kUnsupported);
  CHECK(std::string(error.what()) == DDPRUN_FAKE_LIBNCCL_TOO_OLD
        " is NCCL 2.17.5; 2.18.0 or later is needed");
}

TEST_CASE("load_nccl: its functions are not put in the place of another library's") {
  load_nccl_from(DDPRUN_FAKE_LIBNCCL);
  CHECK(::dlsym(RTLD_DEFAULT, "ncclCommSplit") == nullptr);
}

TEST_CASE("load_nccl: the least version has to do without younger functions") {
  ::setenv("FAKE_NCCL_VERSION", "21800", 1);
  const auto old = load_nccl_from(DDPRUN_FAKE_LIBNCCL_OLD);
  ::unsetenv("FAKE_NCCL_VERSION");
  CHECK(old->version() == nccl::kMinVersion);
  CHECK_FALSE(old->has_mem_alloc());
  CHECK_FALSE(old->has_init_rank_scalable());
  void* data = nullptr;
  nccl::Comm comm = nullptr;
  const nccl::UniqueId id;
  CHECK(old->mem_alloc(&data, 64) == nccl::Result::kInvalidUsage);
  CHECK(old->comm_init_rank_scalable(&comm, 1, 0, &id, 1, {}) == nccl::Result::kInvalidUsage);
  const auto young = load_nccl_from(DDPRUN_FAKE_LIBNCCL);
  CHECK(young->has_mem_alloc());
  CHECK(young->has_init_rank_scalable());
}

TEST_CASE("load_nccl: a configuration arrives in NCCL's fields, and a split has its parent's") {
  const auto library = load_nccl_from(DDPRUN_FAKE_LIBNCCL);
  FakeLibncclCalls& calls = calls_of(DDPRUN_FAKE_LIBNCCL);
  nccl::Comm comm = nullptr, part = nullptr;
  library->comm_init_rank(&comm, 1, {}, 0,
                          {.min_ctas = 2,
                           .max_ctas = 8,
                           .cga_cluster_size = 4,
                           .traffic_class = 3,
                           .split_share = true,
                           .net_name = "Socket",
                           .comm_name = "mine"});
  CHECK((calls.min_ctas == 2 && calls.max_ctas == 8 && calls.cga_cluster_size == 4));
  CHECK((calls.split_share == 1 && calls.net_name == "Socket"));
  if (library->config_version() >= 22600) CHECK(calls.traffic_class == 3);
  if (library->config_version() >= 22700) CHECK(calls.comm_name == "mine");
  library->comm_split(comm, 0, 0, &part);
  CHECK_FALSE(calls.has_split_config);
  library->comm_destroy(part);
  library->comm_destroy(comm);
  library->comm_init_rank(&comm, 1, {}, 0, {});
  CHECK(calls.max_ctas < 0);  // NCCL chooses
  CHECK(calls.net_name.empty());
  library->comm_destroy(comm);
}

TEST_CASE("load_nccl: bool is uint8 with operations of its own, and float8 is moved as bytes") {
  const auto library = load_nccl_from(DDPRUN_FAKE_LIBNCCL);
  FakeLibncclCalls& calls = calls_of(DDPRUN_FAKE_LIBNCCL);
  const auto is = [&](ncclDataType_t dtype, ncclRedOp_t op) {
    return calls.dtype == dtype && calls.op == op;
  };
  const auto reduce = [&](DType dtype, ReduceOp op) {
    library->all_reduce(nullptr, nullptr, 1, dtype, op, nullptr, nullptr);
  };
  reduce(DType::kBool, ReduceOp::kSum);
  CHECK(is(ncclUint8, ncclMax));
  reduce(DType::kBool, ReduceOp::kProduct);
  CHECK(is(ncclUint8, ncclMin));
  reduce(DType::kBFloat16, ReduceOp::kSum);
  CHECK(is(ncclBfloat16, ncclSum));
  library->broadcast(nullptr, nullptr, 1, DType::kFloat8E4M3, 0, nullptr, nullptr);
  CHECK(is(ncclUint8, ncclSum));
  library->send(nullptr, 1, DType::kFloat8E5M2, 0, nullptr, nullptr);
  CHECK(is(ncclUint8, ncclSum));
  library->recv(nullptr, 1, DType::kInt64, 0, nullptr, nullptr);
  CHECK(is(ncclInt64, ncclSum));
}

}  // namespace
}  // namespace ddprun::test
