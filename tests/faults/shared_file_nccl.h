// SPDX-License-Identifier: Apache-2.0
// NCCL between processes of one machine, as far as a test's job needs it. An id names a file that
// all its ranks map. An all_reduce of one whole number waits there for every rank. Like the real
// one over shared memory it shows nothing of a peer that has died. It waits until it is aborted.
// The operation passes then, with rubbish in its buffer.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "common/random_id.h"
#include "common/unique_fd.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/light_nccl.h"

namespace ddprun::test {

class SharedFileNccl final : public LightNccl {
 public:
  SharedFileNccl(std::shared_ptr<FakeCuda> cuda, std::string directory)
      : cuda_(std::move(cuda)), directory_(std::move(directory)) {}

  Result get_unique_id(nccl::UniqueId* id) override {
    const std::string name = random_id();
    std::memcpy(id->bytes, name.c_str(), name.size() + 1);
    return Result::kSuccess;
  }

  Result comm_init_rank(Comm* comm, int size, const nccl::UniqueId& id, int rank,
                        const NcclConfig& /*config*/) override {
    const std::string path = directory_ + "/nccl." + id.bytes;
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file || ::ftruncate(file.get(), sizeof(Meeting)) != 0) return Result::kSystemError;
    void* mapped =
        ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (mapped == MAP_FAILED || size > kMaxRanks) return Result::kSystemError;
    const auto made = std::make_shared<Rank>(static_cast<Meeting*>(mapped), rank, size);
    made->meeting->arrived[rank] = 1;
    *comm = reinterpret_cast<Comm>(made.get());
    {
      const std::lock_guard lock(mutex_);
      ranks_[*comm] = made;
    }
    // Waits for ever if a rank has died.
    while (!made->all_at(1)) std::this_thread::sleep_for(kPause);
    return Result::kSuccess;
  }

  Result comm_abort(Comm comm) override {
    const auto rank = find(comm);
    rank->aborted = true;
    while (rank->num_running > 0) std::this_thread::sleep_for(kPause);
    return comm_destroy(comm);
  }

  Result comm_destroy(Comm comm) override {
    const std::lock_guard lock(mutex_);
    return ranks_.erase(comm) == 1 ? Result::kSuccess : Result::kInvalidArgument;
  }

  Result all_reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                    Comm comm, Stream stream) override {
    if (count != 1) return Result::kInvalidUsage;
    const auto run = dtype == DType::kInt64   ? &SharedFileNccl::reduce<std::int64_t>
                     : dtype == DType::kInt32 ? &SharedFileNccl::reduce<std::int32_t>
                                              : nullptr;
    if (run == nullptr || (op != ReduceOp::kSum && op != ReduceOp::kMin)) {
      return Result::kInvalidUsage;
    }
    const auto rank = find(comm);
    ++rank->num_running;
    cuda_->enqueue(stream, [=, number = ++rank->num_operations] {
      run(*rank, number, input, output, op);
      --rank->num_running;
    });
    return Result::kSuccess;
  }

 private:
  static constexpr int kMaxRanks = 8;
  static constexpr std::chrono::microseconds kPause{20};

  // The file's content. A rank is at most one operation ahead of another one, so each needs two
  // places.
  struct Meeting {
    std::atomic<std::uint64_t> arrived[kMaxRanks];  // 1: has joined; n + 1: in the n-th operation
    std::atomic<std::int64_t> values[2][kMaxRanks];
  };

  struct Rank {
    Rank(Meeting* mapped, int its_rank, int its_size)
        : meeting(mapped), rank(its_rank), size(its_size) {}
    ~Rank() { ::munmap(meeting, sizeof(Meeting)); }
    bool all_at(std::uint64_t number) const {
      return std::all_of(meeting->arrived, meeting->arrived + size,
                         [=](const auto& each) { return each >= number; });
    }

    Meeting* const meeting;
    const int rank, size;
    std::uint64_t num_operations = 0;  // used by the launching thread only
    std::atomic<int> num_running{0};
    std::atomic<bool> aborted{false};
  };

  template <typename Value>
  static void reduce(Rank& rank, std::uint64_t number, const void* input, void* output,
                     ReduceOp op) {
    auto& values = rank.meeting->values[number % 2];
    values[rank.rank] = *static_cast<const Value*>(input);
    rank.meeting->arrived[rank.rank] = number + 1;
    while (!rank.all_at(number + 1)) {
      if (rank.aborted) {
        std::memset(output, 0xAB, sizeof(Value));
        return;
      }
      std::this_thread::sleep_for(kPause);
    }
    std::int64_t result = values[0];
    for (int i = 1; i < rank.size; ++i) {
      result =
          op == ReduceOp::kSum ? result + values[i] : std::min<std::int64_t>(result, values[i]);
    }
    *static_cast<Value*>(output) = static_cast<Value>(result);
  }

  std::shared_ptr<Rank> find(Comm comm) {
    const std::lock_guard lock(mutex_);
    return ranks_.at(comm);
  }

  const std::shared_ptr<FakeCuda> cuda_;
  const std::string directory_;
  std::mutex mutex_;
  std::map<Comm, std::shared_ptr<Rank>> ranks_;  // Guarded by mutex_; second owners: operations
};

}  // namespace ddprun::test
