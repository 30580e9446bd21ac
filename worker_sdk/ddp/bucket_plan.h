// SPDX-License-Identifier: Apache-2.0
// Which gradients share a bucket, and where each lies in memory: PyTorch DDP's rules
// (compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp).
// Pure: no I/O, clock or thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker_sdk/core/tensor_view.h"

namespace ddprun {

// One parameter that gets a gradient. Its index is its place in the model's list of them.
struct ParameterSpec {
  std::string name;  // its name in the model, for messages
  std::size_t count = 0;
  DType dtype = DType::kFloat32;
  Device device{};
  std::vector<std::int64_t> shape{};  // for communication hooks; empty: not known

  std::size_t size_bytes() const { return count * size_of(dtype); }
};

struct BucketLimits {
  std::size_t first_bytes = 1 << 20;  // small, so that communication starts early
  // PyTorch's bucket_cap_mb. 0: the backend's default, 25 MiB (as PyTorch's) on "nccl", 4 MiB on
  // "host". The host backend is as fast with 4 MiB: communication starts earlier, and less of it is
  // left when backward ends.
  std::size_t cap_bytes = 0;
};

// Replaces a cap_bytes of 0 by the backend's default.
BucketLimits limits_for(std::string_view backend, BucketLimits limits);

// Buckets in launch order; each holds the indices of its parameters, in memory order. Every
// parameter is in exactly one bucket. All parameters of a bucket have one dtype and device.
using BucketPlan = std::vector<std::vector<std::size_t>>;

// Plans the first iteration, when the order of arrival is unknown: one bucket per (dtype, device).
// The bucket with the model's last parameters comes first.
BucketPlan plan_without_order(std::span<const ParameterSpec> parameters);

// Plans all later iterations. A bucket is closed when it has reached its limit: `first_bytes` for
// the first bucket of its (dtype, device), then `cap_bytes`. `arrival` is a permutation of all
// indices: the order in which gradients became ready. Buckets that were never closed come last, in
// order of their first parameter (PyTorch: in hash order).
BucketPlan plan_by_arrival(std::span<const ParameterSpec> parameters,
                           std::span<const std::size_t> arrival, const BucketLimits& limits);

// Returns `order` as indices into `known`. Throws Error(kInvalidArgument) unless `order` holds each
// name once; the message names the first that is missing, doubled or unknown.
std::vector<std::size_t> indices_of_order(std::span<const std::string> known,
                                          std::span<const std::string> order);

// A plan's layout in one arena. Every gradient and bucket starts at a multiple of
// kGradientAlignment; the bytes between are unused.
inline constexpr std::size_t kGradientAlignment = 64;

struct BucketLayout {
  struct Bucket {
    std::size_t offset_bytes = 0;
    std::size_t count = 0;  // elements, padding between gradients included
    DType dtype = DType::kFloat32;
    Device device{};
  };
  struct Slot {
    std::size_t bucket = 0;
    std::size_t offset_bytes = 0;  // from the arena's start
  };
  std::vector<Bucket> buckets;  // by bucket
  std::vector<Slot> slots;      // by parameter index
};

BucketLayout lay_out(std::span<const ParameterSpec> parameters, const BucketPlan& plan);

// Returns enough bytes for the layout of any plan over these parameters.
std::size_t arena_bytes(std::span<const ParameterSpec> parameters);

}  // namespace ddprun
