// SPDX-License-Identifier: Apache-2.0
// Fakes of NCCL and CUDA that return at once, to start thousands of ranks in one process. No rank
// waits for another one, and nothing is reduced. The set-up's arguments are checked.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::test {

// Any thread may call it. Calls that only FakeNccl can do return kInvalidUsage.
class LightNccl : public nccl::NcclApi {
 public:
  using Result = nccl::Result;
  using Comm = nccl::Comm;
  using Stream = nccl::Stream;

  // The lists of ids that ranks passed. There is one entry if all ranks passed the same list.
  std::set<std::string> id_lists() const {
    const std::lock_guard lock(mutex_);
    return id_lists_;
  }
  // The keys that came with each color in the n-th split of a rank. (n, color) stands for a group.
  std::map<std::pair<int, int>, std::set<int>> keys_of() const {
    const std::lock_guard lock(mutex_);
    return keys_of_;
  }
  int num_ids() const { return num_ids_.load(); }
  int num_inits() const { return num_inits_.load(); }
  int num_live() const { return num_live_.load(); }

  int version() override { return 22809; }
  std::string library() override { return "light"; }
  Result get_unique_id(nccl::UniqueId* id) override {
    const std::string text = "id " + std::to_string(++num_ids_);
    std::memcpy(id->bytes, text.c_str(), text.size() + 1);
    return Result::kSuccess;
  }
  Result comm_init_rank(Comm* comm, int size, const nccl::UniqueId& id, int rank,
                        const NcclConfig& config) override {
    return comm_init_rank_scalable(comm, size, rank, &id, 1, config);
  }
  bool has_init_rank_scalable() override { return true; }
  Result comm_init_rank_scalable(Comm* comm, int, int, const nccl::UniqueId* ids, int num_ids,
                                 const NcclConfig& /*config*/) override {
    std::string list;
    for (int i = 0; i < num_ids; ++i) list += ids[i].bytes + std::string(";");
    {
      const std::lock_guard lock(mutex_);
      id_lists_.insert(list);
    }
    ++num_inits_;
    *comm = fresh();
    return Result::kSuccess;
  }
  Result comm_split(Comm comm, int color, int key, Comm* made) override {
    {
      const std::lock_guard lock(mutex_);
      const int n = reinterpret_cast<One*>(comm)->num_splits++;
      if (!keys_of_[{n, color}].insert(key).second) return Result::kInvalidUsage;
    }
    *made = fresh();
    return Result::kSuccess;
  }
  Result comm_async_error(Comm, Result* state) override {
    *state = Result::kSuccess;
    return Result::kSuccess;
  }
  Result comm_destroy(Comm comm) override {
    delete reinterpret_cast<One*>(comm);
    --num_live_;
    return Result::kSuccess;
  }
  Result comm_abort(Comm comm) override { return comm_destroy(comm); }
  Result all_reduce(const void*, void*, std::size_t, DType, ReduceOp, Comm, Stream) override {
    return Result::kInvalidUsage;
  }
  Result reduce(const void*, void*, std::size_t, DType, ReduceOp, int, Comm, Stream) override {
    return Result::kInvalidUsage;
  }
  Result broadcast(const void*, void*, std::size_t, DType, int, Comm, Stream) override {
    return Result::kInvalidUsage;
  }
  Result all_gather(const void*, void*, std::size_t, DType, Comm, Stream) override {
    return Result::kInvalidUsage;
  }
  Result reduce_scatter(const void*, void*, std::size_t, DType, ReduceOp, Comm, Stream) override {
    return Result::kInvalidUsage;
  }
  Result send(const void*, std::size_t, DType, int, Comm, Stream) override {
    return Result::kInvalidUsage;
  }
  Result recv(void*, std::size_t, DType, int, Comm, Stream) override {
    return Result::kInvalidUsage;
  }
  Result group_start() override { return Result::kInvalidUsage; }
  Result group_end() override { return Result::kInvalidUsage; }
  bool has_mem_alloc() override { return false; }
  Result mem_alloc(void**, std::size_t) override { return Result::kInvalidUsage; }
  Result mem_free(void*) override { return Result::kInvalidUsage; }
  Result comm_register(Comm, void*, std::size_t, void**) override { return Result::kInvalidUsage; }
  Result comm_deregister(Comm, void*) override { return Result::kInvalidUsage; }
  std::string error_text(Result) override { return "not in the light fake"; }
  std::string last_error(Comm) override { return ""; }

 private:
  struct One {
    int num_splits = 0;  // Guarded by mutex_
  };

  Comm fresh() {
    ++num_live_;
    return reinterpret_cast<Comm>(new One);
  }

  std::atomic<int> num_ids_{0};
  std::atomic<int> num_inits_{0};
  std::atomic<int> num_live_{0};
  mutable std::mutex mutex_;
  std::set<std::string> id_lists_;                        // Guarded by mutex_
  std::map<std::pair<int, int>, std::set<int>> keys_of_;  // Guarded by mutex_; by (split, color)
};

// One device that all ranks share. Each operation on it counts as done at once.
class LightCuda : public nccl::CudaApi {
 public:
  using CudaResult = nccl::CudaResult;
  using Stream = nccl::Stream;
  using Event = nccl::Event;
  static constexpr CudaResult kDone = nccl::kCudaSuccess;

  CudaResult device_count(int* count) override { return *count = 1, kDone; }
  CudaResult get_device(int* device) override { return *device = 0, kDone; }
  CudaResult set_device(int) override { return kDone; }
  CudaResult device_uuid(int, std::string* uuid) override { return *uuid = "light", kDone; }
  CudaResult device_pci_bus_id(int, std::string* id) override { return *id = "light", kDone; }
  CudaResult compute_capability(int, int* major, int* minor) override {
    return *major = 9, *minor = 0, kDone;
  }
  CudaResult stream_create_high_priority(Stream* stream) override {
    return *stream = reinterpret_cast<Stream>(this), kDone;
  }
  CudaResult stream_destroy(Stream) override { return kDone; }
  CudaResult stream_synchronize(Stream) override { return kDone; }
  CudaResult stream_wait_event(Stream, Event) override { return kDone; }
  CudaResult stream_is_capturing(Stream, bool* capturing) override {
    return *capturing = false, kDone;
  }
  CudaResult event_create(Event* event, bool) override {
    return *event = reinterpret_cast<Event>(this), kDone;
  }
  CudaResult event_destroy(Event) override { return kDone; }
  CudaResult event_record(Event, Stream) override { return kDone; }
  CudaResult event_query(Event) override { return kDone; }
  CudaResult event_elapsed(float* milliseconds, Event, Event) override {
    return *milliseconds = 0, kDone;
  }
  CudaResult memory_allocate(void** data, std::size_t) override { return *data = this, kDone; }
  CudaResult memory_free(void*) override { return kDone; }
  CudaResult memory_set(void*, int, std::size_t, Stream) override { return kDone; }
  CudaResult memory_copy(void*, const void*, std::size_t, Stream) override { return kDone; }
  std::string error_text(CudaResult) override { return "none"; }
};

}  // namespace ddprun::test
