// SPDX-License-Identifier: Apache-2.0
// A set of images as tensors. Heavy: includes ATen; for trainer.cc alone.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "examples/train/idx_file.h"

namespace ddprun::train {

// One image set on the device, as bytes; batches are made from it.
class Images {
 public:
  // `set` outlives this object.
  Images(const ImageSet& set, torch::Device device) {
    const auto count = static_cast<std::int64_t>(set.count);
    const auto rows = static_cast<std::int64_t>(set.rows);
    const auto columns = static_cast<std::int64_t>(set.columns);
    // from_blob does not own: to() copies to a GPU, and on the CPU `set` outlives this object.
    pixels_ = torch::from_blob(const_cast<std::uint8_t*>(set.pixels.data()),
                               {count, 1, rows, columns}, torch::kByte)
                  .to(device);
    labels_ = torch::from_blob(const_cast<std::uint8_t*>(set.labels.data()), {count}, torch::kByte)
                  .to(torch::TensorOptions().device(device).dtype(torch::kLong));
  }

  std::int64_t count() const { return labels_.size(0); }
  torch::Device device() const { return labels_.device(); }
  torch::Tensor pixels(const torch::Tensor& indices) const {
    return pixels_.index_select(0, indices)
        .to(torch::kFloat)
        .mul_(1 / (255 * kPixelDeviation))
        .sub_(kPixelMean / kPixelDeviation);
  }
  torch::Tensor labels(const torch::Tensor& indices) const {
    return labels_.index_select(0, indices);
  }

 private:
  static constexpr double kPixelMean = 0.1307, kPixelDeviation = 0.3081;  // MNIST's

  torch::Tensor pixels_, labels_;
};

}  // namespace ddprun::train
