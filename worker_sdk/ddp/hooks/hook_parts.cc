// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hooks/hook_parts.h"

#include "common/error.h"
#include "common/log.h"

namespace ddprun::hooks {

void check_on_cpu(std::span<const GradBucket> buckets) {
  for (const GradBucket& bucket : buckets) {
    if (bucket.view.device.kind == Device::Kind::kCpu) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        concat("gradients are compressed in the memory of the CPU, but that of ",
               bucket.gradients.front().name, " is on a GPU: train on the CPU, or don't compress"));
  }
}

bool is_compressible(const TensorView& bucket) {
  return bucket.dtype == DType::kFloat32 && bucket.count > 0;
}

HookStep average_as_it_is(const GradBucket& bucket, int step, Communicator& communicator) {
  if (step != 0) return {};
  return {communicator.all_reduce(bucket.view, ReduceOp::kAverage, {.async = true}),
          bucket.view.size_bytes()};
}

void allocate(std::span<const GradBucket> buckets, const BytesOf& bytes_of,
              Communicator& communicator, Buffers& buffers) {
  buffers.clear();
  for (const GradBucket& bucket : buckets) {
    const bool compresses = is_compressible(bucket.view);
    buffers.push_back(compresses ? communicator.allocate(bytes_of(bucket)) : nullptr);
  }
}

void allocate_gathered(std::span<const GradBucket> buckets, const BytesOf& part_bytes,
                       Communicator& communicator, Buffers& buffers) {
  const auto size = static_cast<std::size_t>(communicator.size());
  const auto all = [&](const GradBucket& bucket) { return size * part_bytes(bucket); };
  allocate(buckets, all, communicator, buffers);
}

HookStep Gathered::start() const {
  const TensorView mine{
      .data = part(communicator_.rank()), .count = part_bytes_, .dtype = DType::kUInt8};
  const TensorView all{.data = data_,
                       .count = part_bytes_ * static_cast<std::size_t>(communicator_.size()),
                       .dtype = DType::kUInt8};
  return {communicator_.all_gather(mine, all, {.async = true}), part_bytes_};
}

}  // namespace ddprun::hooks
