// SPDX-License-Identifier: Apache-2.0
// A Loader whose batches are tensors on the training's device: where that is a GPU the worker
// threads put them into pinned memory, and a stream of its own copies them while the GPU computes.
// docs/loader.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "worker_sdk/ddp/loader.h"

namespace ddprun {

// One thread calls set_epoch() and next(); errors as Loader's.
class PinnedLoader {
 public:
  using Batch = std::vector<at::Tensor>;

  // `load` returns tensors on the CPU.
  PinnedLoader(const DistributedSampler& sampler, const LoaderOptions& options,
               Loader<Batch>::Load load, c10::Device device);
  ~PinnedLoader();

  void set_epoch(std::uint64_t epoch, std::int64_t first_sample = 0);

  // The next batch, on the device and for use on the caller's current stream; nullopt: the epoch is
  // over. On a GPU it returns before the copy is done.
  std::optional<Batch> next();

  std::chrono::nanoseconds waited() const;  // for loading; the stream's waiting is the GPU's

 private:
  class ToDevice;

  Loader<Batch> loader_;
  std::unique_ptr<ToDevice> to_device_;  // null: the device is the CPU
};

}  // namespace ddprun
