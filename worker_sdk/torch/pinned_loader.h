// SPDX-License-Identifier: Apache-2.0
// A Loader whose batches are tensors on the training's device. If that is a GPU, the worker threads
// put them into pinned memory, and a separate stream copies them while the GPU computes
// (docs/loader.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "worker_sdk/ddp/loader.h"

namespace ddprun {

// One thread calls set_epoch(), next() and waited().
class PinnedLoader {
 public:
  using Batch = std::vector<at::Tensor>;

  // `load` makes one batch of these samples: dense tensors on the CPU, of any number, shape and
  // dtype. It is called on up to LoaderOptions::num_threads threads at a time. `device` is where
  // batches are used. Throws Error(kInvalidArgument): a batch size or prefetch below 1, negative
  // threads. Throws c10::Error if this LibTorch can't use `device`.
  PinnedLoader(const DistributedSampler& sampler, const LoaderOptions& options,
               Loader<Batch>::Load load, c10::Device device);
  ~PinnedLoader();

  // Begins epoch `epoch`: its batches come in the sampler's order, from sample `first_sample` of
  // this rank on. Waits for the loads under way, and drops their batches; loading begins at once.
  // Throws Error(kInvalidArgument): a negative sample.
  void set_epoch(std::uint64_t epoch, std::int64_t first_sample = 0);

  // Returns the next batch, on the device and for use on the caller's current stream; nullopt: the
  // epoch is over. On a GPU it returns before the copy is done. If `load` or pinning its result
  // threw, rethrows that after the batches before it, and again until set_epoch(). Throws
  // Error(kInvalidArgument) before the first set_epoch(), c10::Error if the GPU has no memory.
  std::optional<Batch> next();

  // Returns how long next() has waited for loading since construction. Waits of the GPU's stream
  // don't count.
  std::chrono::nanoseconds waited() const;

 private:
  class ToDevice;

  Loader<Batch> loader_;
  std::unique_ptr<ToDevice> to_device_;  // null: the device is the CPU
};

}  // namespace ddprun
