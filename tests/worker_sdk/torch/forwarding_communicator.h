// SPDX-License-Identifier: Apache-2.0
// Communicators that stand in for another one.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "worker_sdk/core/communicator.h"

namespace ddprun::testing {

// Forwards every call to a communicator that outlives it.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& real) : real_(real) {}

  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  std::string_view backend() const override { return real_.backend(); }
  WorkPtr run(const CollectiveCall& call, const CallOptions& options) override {
    return real_.run(call, options);
  }
  WorkPtr group(const std::function<void()>& calls, bool async) override {
    return real_.group(calls, async);
  }
  void barrier(const CallOptions& options) override { real_.barrier(options); }
  std::unique_ptr<CommBuffer> allocate(std::size_t size_bytes) override {
    return real_.allocate(size_bytes);
  }
  std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const SplitOptions& options) override {
    return real_.split(ranks, options);
  }
  void abort(std::string_view reason) override { real_.abort(reason); }

 private:
  Communicator& real_;
};

// Shows host memory as GPU memory to a communicator over NCCL's fake, for which it is the same. The
// rank's device has the rank's number.
class OnGpu : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  WorkPtr run(const CollectiveCall& call, const CallOptions& options) override {
    CollectiveCall its = call;
    its.input = on_gpu(call.input);
    its.output = on_gpu(call.output);
    return ForwardingCommunicator::run(its, options);
  }

 private:
  TensorView on_gpu(TensorView view) const {
    view.device = {Device::Kind::kCuda, rank()};
    return view;
  }
};

// Says that a CUDA graph is captured.
class CapturesGraph final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  bool captures_graph() const override { return is_on; }

  bool is_on = false;
};

// Says that it is NCCL's, and refuses averages. The SDK then acts as on GPUs, without one.
class LikeNccl final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  std::string_view backend() const override { return "nccl"; }
  WorkPtr run(const CollectiveCall& call, const CallOptions& options) override {
    if (call.op == ReduceOp::kAverage) {
      throw Error(ErrorCode::kUnsupported, "an average, where NCCL should sum");
    }
    return ForwardingCommunicator::run(call, options);
  }
};

}  // namespace ddprun::testing
