// SPDX-License-Identifier: Apache-2.0
// The images that this rank trains with, in batches, and those that all ranks test with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "apps/train/idx_file.h"
#include "apps/train/options.h"
#include "apps/train/place.h"
#include "worker_sdk/ddp/distributed_sampler.h"
#include "worker_sdk/torch/pinned_loader.h"

namespace ddprun::train {

// One image set on the device, as bytes; batches are made from it.
class Images {
 public:
  // `set` outlives this object.
  Images(const ImageSet& set, c10::Device device);

  std::int64_t count() const { return labels_.size(0); }
  c10::Device device() const { return labels_.device(); }

  // `indices` are int64, on the device. N of them give N × 1 × rows × columns floats, normalised
  // with MNIST's mean and deviation, and N int64 labels.
  at::Tensor pixels(const at::Tensor& indices) const;
  at::Tensor labels(const at::Tensor& indices) const;

  // Returns {pixels, labels} of a batch.
  std::vector<at::Tensor> batch(const std::vector<std::int64_t>& indices) const;

 private:
  at::Tensor pixels_, labels_;
};

// Used by one thread.
class TrainingData {
 public:
  // The references outlive this object. Throws Error(kInvalidArgument) if there are so many ranks
  // that one would have no image.
  TrainingData(const Options& options, const DataSet& data, const Place& place, c10::Device device);

  std::int64_t batch_size() const { return batch_size_; }       // this rank's; the last may be less
  std::int64_t num_samples() const { return sampler_.size(); }  // in this rank's epoch
  std::int64_t num_common_samples() const { return common_samples_; }  // that every rank has
  std::uint64_t steps_per_epoch() const;                               // on the rank with most
  std::int64_t num_batches(std::int64_t num_samples) const;

  // Batches are {pixels, labels} on the training's device.
  PinnedLoader& loader() { return loader_; }
  const Images& test_images() const { return test_images_; }

 private:
  PinnedLoader make_loader(const Options& options, const Place& place, c10::Device device) const;

  // Constant after construction.
  const int num_ranks_;
  const SamplerOptions sampling_;
  const std::int64_t batch_size_;
  const Images train_images_, test_images_;
  const DistributedSampler sampler_;
  const std::int64_t common_samples_;

  PinnedLoader loader_;
};

}  // namespace ddprun::train
