// SPDX-License-Identifier: Apache-2.0
// A set of images as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "examples/train/idx_file.h"

namespace ddprun::train {

// One image set on the device, as bytes; batches are made from it.
class Images {
 public:
  // `set` outlives this object.
  Images(const ImageSet& set, c10::Device device);

  std::int64_t count() const { return labels_.size(0); }
  c10::Device device() const { return labels_.device(); }

  // `indices`: int64, on the device. N of them → N × 1 × rows × columns floats, normalised with
  // MNIST's mean and deviation; N int64 labels.
  at::Tensor pixels(const at::Tensor& indices) const;
  at::Tensor labels(const at::Tensor& indices) const;

  // {pixels, labels} of a batch.
  std::vector<at::Tensor> batch(const std::vector<std::int64_t>& indices) const;

 private:
  at::Tensor pixels_, labels_;
};

}  // namespace ddprun::train
