// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hooks/cast_hook.h"

#include "common/check.h"
#include "worker_sdk/core/host/reduce_kernels.h"
#include "worker_sdk/ddp/hooks/hook_parts.h"

namespace ddprun {

CastHook::CastHook(DType wire) : wire_(wire) {
  DDPRUN_CHECK(wire == DType::kFloat16 || wire == DType::kBFloat16);
}

void CastHook::prepare(std::span<const GradBucket> buckets, Communicator& communicator) {
  hooks::check_on_cpu(buckets);
  buffers_.clear();
  if (communicator.narrows()) return;
  const auto bytes_of = [this](const GradBucket& bucket) {
    return bucket.view.count * size_of(wire_);
  };
  hooks::allocate(buckets, bytes_of, communicator, buffers_);
}

TensorView CastHook::wire_view(const GradBucket& bucket) const {
  return {.data = buffers_[bucket.index]->data(), .count = bucket.view.count, .dtype = wire_};
}

HookStep CastHook::run(const GradBucket& bucket, int step, Communicator& communicator) {
  if (!hooks::is_compressible(bucket.view)) {
    return hooks::average_as_it_is(bucket, step, communicator);
  }
  if (buffers_.empty()) {
    if (step != 0) return {};
    return {
        communicator.all_reduce(bucket.view, ReduceOp::kAverage, {.async = true, .wire = wire_}),
        bucket.view.count * size_of(wire_)};
  }
  const TensorView wire = wire_view(bucket);
  auto* const gradients = static_cast<float*>(bucket.view.data);
  if (step == 0) {
    host::reduce_kernels().narrow(wire.data, gradients, wire.count, wire_);
    return {communicator.all_reduce(wire, ReduceOp::kAverage, {.async = true}), wire.size_bytes()};
  }
  host::reduce_kernels().widen(gradients, wire.data, wire.count, wire_);
  return {};
}

}  // namespace ddprun
