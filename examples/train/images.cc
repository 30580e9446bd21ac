// SPDX-License-Identifier: Apache-2.0
#include "examples/train/images.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace ddprun::train {
namespace {

constexpr double kPixelMean = 0.1307, kPixelDeviation = 0.3081;  // MNIST's

}  // namespace

Images::Images(const ImageSet& set, c10::Device device) {
  const auto count = static_cast<std::int64_t>(set.count);
  const auto rows = static_cast<std::int64_t>(set.rows);
  const auto columns = static_cast<std::int64_t>(set.columns);
  // from_blob does not own: to() copies to a GPU, and on the CPU `set` outlives this object.
  pixels_ = at::from_blob(const_cast<std::uint8_t*>(set.pixels.data()), {count, 1, rows, columns},
                          at::kByte)
                .to(device);
  labels_ = at::from_blob(const_cast<std::uint8_t*>(set.labels.data()), {count}, at::kByte)
                .to(at::TensorOptions().device(device).dtype(at::kLong));
}

at::Tensor Images::pixels(const at::Tensor& indices) const {
  return pixels_.index_select(0, indices)
      .to(at::kFloat)
      .mul_(1 / (255 * kPixelDeviation))
      .sub_(kPixelMean / kPixelDeviation);
}

at::Tensor Images::labels(const at::Tensor& indices) const {
  return labels_.index_select(0, indices);
}

std::vector<at::Tensor> Images::batch(const std::vector<std::int64_t>& indices) const {
  const c10::NoGradGuard no_grad;
  at::Tensor chosen = at::tensor(indices, at::kLong);
  // Out of pinned memory the copy doesn't wait for the step before, which the GPU is still about.
  if (device().is_cuda()) chosen = chosen.pin_memory();
  chosen = chosen.to(device(), /*non_blocking=*/true);
  return {pixels(chosen), labels(chosen)};
}

}  // namespace ddprun::train
