// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/bucket_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "common/check.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/ddp/bucket_shards.h"

namespace ddprun {
namespace {

std::size_t round_up(std::size_t bytes) {
  return (bytes + kGradientAlignment - 1) / kGradientAlignment * kGradientAlignment;
}

// The bucket that is being filled for one (dtype, device).
struct OpenBucket {
  DType dtype;
  Device device;
  std::size_t limit_bytes;
  std::size_t size_bytes = 0;
  std::size_t first_position = 0;  // position of its first parameter in the order
  std::vector<std::size_t> indices;
};

OpenBucket& find_or_open(std::vector<OpenBucket>& open, const ParameterSpec& parameter,
                         std::size_t first_limit_bytes) {
  for (OpenBucket& bucket : open) {
    if (bucket.dtype == parameter.dtype && bucket.device == parameter.device) return bucket;
  }
  return open.emplace_back(OpenBucket{.dtype = parameter.dtype,
                                      .device = parameter.device,
                                      .limit_bytes = first_limit_bytes,
                                      .indices = {}});
}

}  // namespace

BucketLimits limits_for(std::string_view backend, BucketLimits limits) {
  constexpr std::size_t kOfHost = 4u << 20, kOfOthers = 25u << 20;
  if (limits.cap_bytes == 0) limits.cap_bytes = backend == "host" ? kOfHost : kOfOthers;
  return limits;
}

BucketPlan plan_by_arrival(std::span<const ParameterSpec> parameters,
                           std::span<const std::size_t> arrival, const BucketLimits& limits) {
  DDPRUN_CHECK(arrival.size() == parameters.size());
  BucketPlan plan;
  std::vector<OpenBucket> open;
  for (std::size_t position = 0; position < arrival.size(); ++position) {
    const ParameterSpec& parameter = parameters[arrival[position]];
    OpenBucket& bucket = find_or_open(open, parameter, limits.first_bytes);
    if (bucket.indices.empty()) bucket.first_position = position;
    bucket.indices.push_back(arrival[position]);
    bucket.size_bytes += parameter.size_bytes();
    if (bucket.size_bytes >= bucket.limit_bytes) {
      plan.push_back(std::move(bucket.indices));
      bucket.indices.clear();
      bucket.size_bytes = 0;
      bucket.limit_bytes = limits.cap_bytes;
    }
  }
  std::ranges::sort(open, [](const OpenBucket& a, const OpenBucket& b) {
    return a.first_position < b.first_position;
  });
  for (OpenBucket& bucket : open) {
    if (!bucket.indices.empty()) plan.push_back(std::move(bucket.indices));
  }
  return plan;
}

BucketPlan plan_without_order(std::span<const ParameterSpec> parameters) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  BucketPlan plan = plan_by_arrival(parameters, order, {kNoLimit, kNoLimit});
  std::ranges::reverse(plan);
  return plan;
}

std::vector<std::size_t> indices_of_order(std::span<const std::string> known,
                                          std::span<const std::string> order) {
  const auto refuse = [](const std::string& name, const char* why) {
    throw_invalid("the order of gradients does not fit the model: ", one_line(name), why);
  };
  std::unordered_map<std::string_view, std::size_t> left;
  for (std::size_t index = 0; index < known.size(); ++index) left.emplace(known[index], index);
  std::vector<std::size_t> indices;
  for (const std::string& name : order) {
    const auto found = left.find(name);
    if (found == left.end()) {
      const bool twice = std::ranges::find(known, name) != known.end();
      refuse(name, twice ? " is there twice" : " is no parameter whose gradient is averaged");
    }
    indices.push_back(found->second);
    left.erase(found);
  }
  for (const std::string& name : known) {
    if (left.contains(name)) refuse(name, " is missing");
  }
  return indices;
}

BucketLayout lay_out(std::span<const ParameterSpec> parameters, const BucketPlan& plan) {
  BucketLayout layout;
  layout.slots.resize(parameters.size());
  std::size_t offset = 0;
  for (std::size_t number = 0; number < plan.size(); ++number) {
    DDPRUN_CHECK(!plan[number].empty());
    const ParameterSpec& first = parameters[plan[number].front()];
    const std::size_t start = offset;
    for (const std::size_t index : plan[number]) {
      layout.slots[index] = {.bucket = number, .offset_bytes = offset};
      offset += round_up(parameters[index].size_bytes());
    }
    layout.buckets.push_back({.offset_bytes = start,
                              .count = (offset - start) / size_of(first.dtype),
                              .dtype = first.dtype,
                              .device = first.device});
  }
  return layout;
}

std::size_t arena_bytes(std::span<const ParameterSpec> parameters) {
  std::size_t bytes = 0;
  for (const ParameterSpec& parameter : parameters) bytes += round_up(parameter.size_bytes());
  return bytes;
}

BucketLayout lay_out_for(std::span<const ParameterSpec> parameters, const BucketPlan& plan,
                         std::size_t num_ranks) {
  BucketLayout layout = lay_out(parameters, plan);
  std::size_t moved_bytes = 0;
  for (std::size_t b = 0; b < plan.size(); ++b) {
    BucketLayout::Bucket& bucket = layout.buckets[b];
    bucket.offset_bytes += moved_bytes;
    for (const std::size_t index : plan[b]) layout.slots[index].offset_bytes += moved_bytes;
    const std::size_t size_bytes = bucket.count * size_of(bucket.dtype);
    const std::size_t unit = num_ranks * kGradientAlignment;
    const std::size_t padded_bytes = (size_bytes + unit - 1) / unit * unit;
    bucket.count = padded_bytes / size_of(bucket.dtype);
    moved_bytes += padded_bytes - size_bytes;
  }
  return layout;
}

TensorView shard_of(const TensorView& bucket, std::size_t rank, std::size_t num_ranks) {
  DDPRUN_CHECK(bucket.count % num_ranks == 0);
  TensorView part = bucket;
  part.count = bucket.count / num_ranks;
  part.data = static_cast<std::byte*>(bucket.data) + rank * part.size_bytes();
  return part;
}

std::vector<std::vector<ShardPiece>> pieces_of(std::span<const ParameterSpec> parameters,
                                               const BucketPlan& plan, const BucketLayout& layout,
                                               std::size_t rank, std::size_t num_ranks) {
  std::vector<std::vector<ShardPiece>> all(plan.size());
  for (std::size_t b = 0; b < plan.size(); ++b) {
    const BucketLayout::Bucket& bucket = layout.buckets[b];
    const std::size_t part = bucket.count / num_ranks;
    const std::size_t begin = rank * part, end = begin + part;
    for (const std::size_t index : plan[b]) {
      const std::size_t slot =
          (layout.slots[index].offset_bytes - bucket.offset_bytes) / size_of(bucket.dtype);
      const std::size_t first = std::max(begin, slot);
      const std::size_t last = std::min(end, slot + parameters[index].count);
      if (first >= last) continue;
      all[b].push_back({.parameter = index,
                        .first = first - slot,
                        .count = last - first,
                        .offset = first - begin});
    }
  }
  return all;
}

}  // namespace ddprun
