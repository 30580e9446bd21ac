// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/cast_hook.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "common/throw_error.h"
#include "worker_sdk/ddp/average_plan.h"
#include "worker_sdk/ddp/hooks/hook_parts.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {
namespace {

using torch_adapter::copy_times;
using torch_adapter::tensor_over;

class TensorCastHook : public CommHook {
 public:
  explicit TensorCastHook(DType wire) : wire_(wire) {}

  void prepare(std::span<const GradBucket> buckets, Communicator& communicator) override {
    average_ = average_plan(communicator.backend(), communicator.size());
    const auto bytes_of = [this](const GradBucket& bucket) {
      return bucket.view.count * size_of(wire_);
    };
    hooks::allocate(buckets, bytes_of, communicator, buffers_);
  }

  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override {
    const c10::NoGradGuard no_grad;
    const at::Tensor gradients = tensor_over(bucket.view);
    if (!buffers_[bucket.index]) {
      if (step != 0) return {};
      if (average_.factor != 1) gradients.mul_(average_.factor);
      return {communicator.all_reduce(bucket.view, average_.op, {.async = true}),
              bucket.view.size_bytes()};
    }
    const TensorView wire{.data = buffers_[bucket.index]->data(),
                          .count = bucket.view.count,
                          .dtype = wire_,
                          .device = bucket.view.device};
    if (step == 0) {
      copy_times(tensor_over(wire), gradients, average_.factor);
      return {communicator.all_reduce(wire, average_.op, {.async = true}), wire.size_bytes()};
    }
    gradients.copy_(tensor_over(wire));
    return {};
  }

 private:
  const DType wire_;
  AveragePlan average_;
  hooks::Buffers buffers_;  // by bucket; null: it is sent uncompressed
};

}  // namespace

std::shared_ptr<CommHook> make_cast_hook(c10::ScalarType wire) {
  if (wire != at::kHalf && wire != at::kBFloat16) {
    throw_invalid("gradients can't travel as ", c10::toString(wire),
                  ": a cast hook takes float16 and bfloat16");
  }
  return std::make_shared<TensorCastHook>(wire == at::kHalf ? DType::kFloat16 : DType::kBFloat16);
}

std::shared_ptr<CommHook> make_comm_hook(const Compression& compression, c10::Device device) {
  if (!device.is_cpu() && compression.kind == Compression::Kind::kFloat16) {
    return make_cast_hook(at::kHalf);
  }
  if (!device.is_cpu() && compression.kind == Compression::Kind::kBFloat16) {
    return make_cast_hook(at::kBFloat16);
  }
  return make_comm_hook(compression);
}

}  // namespace ddprun
