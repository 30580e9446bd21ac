// SPDX-License-Identifier: Apache-2.0
// NcclApi over the real library. Compiled only if nccl.h is there. The header gives the signatures
// and the constants; the library is the one found at run time. So every function that is newer than
// kMinVersion is looked up and may be absent.
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "common/env_names.h"
#include "common/throw_error.h"
#include "worker_sdk/core/nccl/loader.h"

namespace ddprun::nccl {
namespace {

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(static_cast<int>(Result::kSuccess) == ncclSuccess);
static_assert(static_cast<int>(Result::kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(Result::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(Result::kInProgress) == ncclInProgress);

// NCCL ≥ 2.24 reduces floats of 8 bits, on devices of compute capability 9.0 and later.
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
constexpr ncclDataType_t kE4M3 = ncclFloat8e4m3, kE5M2 = ncclFloat8e5m2;
#else
constexpr ncclDataType_t kE4M3 = ncclNumTypes, kE5M2 = ncclNumTypes;
#endif

// bool becomes uint8, with another operation (below).
ncclDataType_t to_nccl(DType dtype) {
  constexpr std::array kTypes{ncclFloat32, ncclFloat64, ncclFloat16, ncclBfloat16,
                              ncclInt8,    ncclUint8,   ncclInt32,   ncclInt64,
                              ncclUint8,   kE4M3,       kE5M2};
  static_assert(kTypes.size() == kNumDTypes);
  const auto at = static_cast<std::size_t>(dtype);
  return at < kTypes.size() ? kTypes[at] : ncclNumTypes;  // NCCL refuses ncclNumTypes
}

// Returns the type of data that is only moved: any library can move bytes.
ncclDataType_t moved_as(DType dtype) { return size_of(dtype) == 1 ? ncclUint8 : to_nccl(dtype); }

ncclRedOp_t to_nccl(ReduceOp op, DType dtype) {
  if (dtype == DType::kBool && op == ReduceOp::kSum) return ncclMax;
  if (dtype == DType::kBool && op == ReduceOp::kProduct) return ncclMin;
  constexpr std::array kOps{ncclSum, ncclAvg, ncclMin, ncclMax, ncclProd};
  static_assert(kOps.size() == static_cast<std::size_t>(ReduceOp::kProduct) + 1);
  const auto at = static_cast<std::size_t>(op);
  return at < kOps.size() ? kOps[at] : ncclNumOps;
}

Result from_nccl(ncclResult_t result) { return static_cast<Result>(result); }
ncclComm_t raw(Comm comm) { return reinterpret_cast<ncclComm_t>(comm); }
cudaStream_t raw(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }

// Non-blocking communicators aren't used: each collective would cost a thread (160 µs against 14).
// Since NCCL 2.26 their ncclCommGetAsyncError would also free what another thread is using
// (pytorch#153960).
constexpr int kBlocking = 1;

// One member per function, with the header's own type.
#define DDPRUN_NCCL_REQUIRED(name) \
  decltype(&::name) name = reinterpret_cast<decltype(&::name)>(library_.require(#name))
#define DDPRUN_NCCL_OPTIONAL(type, name) type name = reinterpret_cast<type>(library_.find(#name))

// Throws Error(kUnsupported) for a library that is too old.
int checked_version(const DynamicLibrary& library) {
  const auto get = reinterpret_cast<decltype(&ncclGetVersion)>(library.require("ncclGetVersion"));
  int version = 0;
  if (get(&version) != ncclSuccess) version = 0;
  if (version >= kMinVersion) return version;
  throw_error(ErrorCode::kUnsupported, library.path(), " is NCCL ", version_text(version), "; ",
              version_text(kMinVersion), " or later is needed");
}

class LoadedNccl : public NcclApi {
 public:
  explicit LoadedNccl(const DynamicLibrary& library) : library_(library) {}

  int version() override { return version_; }
  std::string library() override { return library_.path(); }

  Result get_unique_id(UniqueId* id) override {
    return from_nccl(ncclGetUniqueId(reinterpret_cast<ncclUniqueId*>(id)));
  }

  int config_version() override { return std::min(version_, NCCL_VERSION_CODE); }

  Result comm_init_rank(Comm* comm, int size, const UniqueId& id, int rank,
                        const NcclConfig& config) override {
    ncclConfig_t raw_config = raw_config_of(config);
    const auto& raw_id = reinterpret_cast<const ncclUniqueId&>(id);
    return from_nccl(ncclCommInitRankConfig(reinterpret_cast<ncclComm_t*>(comm), size, raw_id, rank,
                                            &raw_config));
  }

  bool has_init_rank_scalable() override { return ncclCommInitRankScalable != nullptr; }

  Result comm_init_rank_scalable(Comm* comm, int size, int rank, const UniqueId* ids, int num_ids,
                                 const NcclConfig& config) override {
    if (ncclCommInitRankScalable == nullptr) return Result::kInvalidUsage;
    ncclConfig_t raw_config = raw_config_of(config);
    auto* raw_ids = reinterpret_cast<ncclUniqueId*>(const_cast<UniqueId*>(ids));
    return from_nccl(ncclCommInitRankScalable(reinterpret_cast<ncclComm_t*>(comm), size, rank,
                                              num_ids, raw_ids, &raw_config));
  }

  Result comm_split(Comm comm, int color, int key, Comm* made) override {
    ncclConfig_t* const as_its_parents = nullptr;
    return from_nccl(
        ncclCommSplit(raw(comm), color, key, reinterpret_cast<ncclComm_t*>(made), as_its_parents));
  }

  Result comm_async_error(Comm comm, Result* state) override {
    ncclResult_t raw_state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(raw(comm), &raw_state);
    *state = from_nccl(raw_state);
    return from_nccl(result);
  }

  Result comm_destroy(Comm comm) override { return from_nccl(ncclCommDestroy(raw(comm))); }
  Result comm_abort(Comm comm) override { return from_nccl(ncclCommAbort(raw(comm))); }

  Result all_reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                    Comm comm, Stream stream) override {
    return from_nccl(ncclAllReduce(input, output, count, to_nccl(dtype), to_nccl(op, dtype),
                                   raw(comm), raw(stream)));
  }

  Result reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                int root, Comm comm, Stream stream) override {
    return from_nccl(ncclReduce(input, output, count, to_nccl(dtype), to_nccl(op, dtype), root,
                                raw(comm), raw(stream)));
  }

  Result broadcast(const void* input, void* output, std::size_t count, DType dtype, int root,
                   Comm comm, Stream stream) override {
    return from_nccl(
        ncclBroadcast(input, output, count, moved_as(dtype), root, raw(comm), raw(stream)));
  }

  Result all_gather(const void* input, void* output, std::size_t input_count, DType dtype,
                    Comm comm, Stream stream) override {
    return from_nccl(
        ncclAllGather(input, output, input_count, moved_as(dtype), raw(comm), raw(stream)));
  }

  Result reduce_scatter(const void* input, void* output, std::size_t output_count, DType dtype,
                        ReduceOp op, Comm comm, Stream stream) override {
    return from_nccl(ncclReduceScatter(input, output, output_count, to_nccl(dtype),
                                       to_nccl(op, dtype), raw(comm), raw(stream)));
  }

  Result send(const void* input, std::size_t count, DType dtype, int peer, Comm comm,
              Stream stream) override {
    return from_nccl(ncclSend(input, count, moved_as(dtype), peer, raw(comm), raw(stream)));
  }

  Result recv(void* output, std::size_t count, DType dtype, int peer, Comm comm,
              Stream stream) override {
    return from_nccl(ncclRecv(output, count, moved_as(dtype), peer, raw(comm), raw(stream)));
  }

  Result group_start() override { return from_nccl(ncclGroupStart()); }
  Result group_end() override { return from_nccl(ncclGroupEnd()); }

  bool has_mem_alloc() override {
    return ncclMemAlloc != nullptr && ncclMemFree != nullptr && ncclCommRegister != nullptr &&
           ncclCommDeregister != nullptr;
  }

  Result mem_alloc(void** data, std::size_t size_bytes) override {
    return has_mem_alloc() ? from_nccl(ncclMemAlloc(data, size_bytes)) : Result::kInvalidUsage;
  }

  Result mem_free(void* data) override {
    return has_mem_alloc() ? from_nccl(ncclMemFree(data)) : Result::kInvalidUsage;
  }

  Result comm_register(Comm comm, void* data, std::size_t size_bytes, void** handle) override {
    if (!has_mem_alloc()) return Result::kInvalidUsage;
    return from_nccl(ncclCommRegister(raw(comm), data, size_bytes, handle));
  }

  Result comm_deregister(Comm comm, void* handle) override {
    if (!has_mem_alloc()) return Result::kInvalidUsage;
    return from_nccl(ncclCommDeregister(raw(comm), handle));
  }

  std::string error_text(Result result) override {
    return ncclGetErrorString(static_cast<ncclResult_t>(result));
  }

  std::string last_error(Comm comm) override {
    const char* text = ncclGetLastError(raw(comm));
    return text == nullptr ? "" : text;
  }

 private:
  // A library that is older than the header reads only the fields that it knows.
  ncclConfig_t raw_config_of(const NcclConfig& config) {
    ncclConfig_t raw = NCCL_CONFIG_INITIALIZER;
    raw.blocking = kBlocking;
    if (config.min_ctas) raw.minCTAs = *config.min_ctas;
    if (config.max_ctas) raw.maxCTAs = *config.max_ctas;
    if (config.cga_cluster_size) raw.cgaClusterSize = *config.cga_cluster_size;
    if (config.split_share) raw.splitShare = *config.split_share ? 1 : 0;
    if (!config.net_name.empty()) raw.netName = kept(config.net_name);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
    if (config.traffic_class) raw.trafficClass = *config.traffic_class;
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    if (!config.comm_name.empty()) raw.commName = kept(config.comm_name);
#endif
    return raw;
  }

  // Keeps `name` as long as the library: its communicators keep the pointer.
  const char* kept(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return names_.insert(name).first->c_str();
  }

  using InitRankScalable = ncclResult_t (*)(ncclComm_t*, int, int, int, ncclUniqueId*,
                                            ncclConfig_t*);
  using MemAlloc = ncclResult_t (*)(void**, std::size_t);
  using MemFree = ncclResult_t (*)(void*);
  using Register = ncclResult_t (*)(ncclComm_t, void*, std::size_t, void**);
  using Deregister = ncclResult_t (*)(ncclComm_t, void*);

  const DynamicLibrary library_;
  // It comes before the functions below, which an old library lacks.
  const int version_ = checked_version(library_);
  std::mutex mutex_;
  std::set<std::string> names_;  // guarded by mutex_
  DDPRUN_NCCL_REQUIRED(ncclGetUniqueId);
  DDPRUN_NCCL_REQUIRED(ncclCommInitRankConfig);
  DDPRUN_NCCL_REQUIRED(ncclCommSplit);
  DDPRUN_NCCL_REQUIRED(ncclCommGetAsyncError);
  DDPRUN_NCCL_REQUIRED(ncclCommDestroy);
  DDPRUN_NCCL_REQUIRED(ncclCommAbort);
  DDPRUN_NCCL_REQUIRED(ncclAllReduce);
  DDPRUN_NCCL_REQUIRED(ncclReduce);
  DDPRUN_NCCL_REQUIRED(ncclBroadcast);
  DDPRUN_NCCL_REQUIRED(ncclAllGather);
  DDPRUN_NCCL_REQUIRED(ncclReduceScatter);
  DDPRUN_NCCL_REQUIRED(ncclSend);
  DDPRUN_NCCL_REQUIRED(ncclRecv);
  DDPRUN_NCCL_REQUIRED(ncclGroupStart);
  DDPRUN_NCCL_REQUIRED(ncclGroupEnd);
  DDPRUN_NCCL_REQUIRED(ncclGetErrorString);
  DDPRUN_NCCL_REQUIRED(ncclGetLastError);
  DDPRUN_NCCL_OPTIONAL(InitRankScalable, ncclCommInitRankScalable);
  DDPRUN_NCCL_OPTIONAL(MemAlloc, ncclMemAlloc);
  DDPRUN_NCCL_OPTIONAL(MemFree, ncclMemFree);
  DDPRUN_NCCL_OPTIONAL(Register, ncclCommRegister);
  DDPRUN_NCCL_OPTIONAL(Deregister, ncclCommDeregister);
};

#undef DDPRUN_NCCL_REQUIRED
#undef DDPRUN_NCCL_OPTIONAL

}  // namespace

std::shared_ptr<NcclApi> load_nccl() {
  // This value would win over config.blocking. It isn't set here, where the program may have
  // threads: setenv is not safe beside a getenv.
  const char* const blocking = std::getenv(env::kNcclCommBlocking);
  if (blocking != nullptr && std::string(blocking) != "1") {
    throw_error(ErrorCode::kUnsupported, env::kNcclCommBlocking, "=", blocking,
                ": only blocking communicators are used: unset it");
  }
  LibrarySearch search;
  search.what = "NCCL";
  search.override_variable = env::kNcclLibrary;
  search.names = {"libnccl.so.2"};
  search.folders = {DDPRUN_NCCL_LIBRARY_DIR};
  return std::make_shared<LoadedNccl>(DynamicLibrary::open(search));
}

}  // namespace ddprun::nccl
