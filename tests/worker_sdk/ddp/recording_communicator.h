// SPDX-License-Identifier: Apache-2.0
// A communicator of one real rank whose peers are imagined. It records each all-reduce and
// reduce-scatter, and completes it only when the test says so. Pure: it has no thread, and no
// memory but its own.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "worker_sdk/core/communicator.h"

namespace ddprun::test {

class RecordingWork : public Work {
 public:
  bool is_completed() override { return completed; }
  void wait() override {
    completed = waited = true;
    if (on_wait) on_wait();
  }

  bool completed = false;
  bool waited = false;
  std::function<void()> on_wait;
};

class RecordingCommunicator : public Communicator {
 public:
  struct Call {
    TensorView view;
    ReduceOp op;
    bool async;
    std::shared_ptr<RecordingWork> work;  // the other owner: the caller
    TensorView output{};                  // only of reduce_scatter; else null
  };

  int rank() const override { return 0; }
  int size() const override { return num_ranks; }
  std::string_view backend() const override { return name; }

  WorkPtr run(const CollectiveCall& call, const CallOptions& options) override {
    const bool is_scatter = call.kind == CollectiveKind::kReduceScatter;
    if (call.kind != CollectiveKind::kAllReduce && !is_scatter) return unexpected();
    calls.push_back({call.input, call.op, options.async, std::make_shared<RecordingWork>(),
                     is_scatter ? call.output : TensorView()});
    return calls.back().work;
  }
  WorkPtr group(const std::function<void()>&, bool) override { return unexpected(); }
  void barrier(const CallOptions&) override { unexpected(); }
  std::unique_ptr<Communicator> split(const std::vector<int>&, const SplitOptions&) override {
    throw Error(ErrorCode::kInvalidArgument, "this one is never split");
  }
  void abort(std::string_view) override { ++num_aborts; }

  std::unique_ptr<CommBuffer> allocate(std::size_t size_bytes) override {
    return std::make_unique<Buffer>(size_bytes, num_buffers);
  }

  std::string_view name = "recording";  // the name of the backend
  int num_ranks = 2;
  std::vector<Call> calls;
  int num_aborts = 0;
  int num_buffers = 0;  // living buffers

 private:
  class Buffer : public CommBuffer {
   public:
    Buffer(std::size_t size_bytes, int& num_buffers)
        : bytes_(size_bytes), num_buffers_(num_buffers) {
      ++num_buffers_;
    }
    ~Buffer() override { --num_buffers_; }
    void* data() override { return bytes_.data(); }
    std::size_t size_bytes() const override { return bytes_.size(); }

   private:
    std::vector<std::byte> bytes_;
    int& num_buffers_;
  };

  static WorkPtr unexpected() {
    throw Error(ErrorCode::kUnsupported, "the reducer called what it should not");
  }
};

}  // namespace ddprun::test
