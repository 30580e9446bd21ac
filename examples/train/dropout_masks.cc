// SPDX-License-Identifier: Apache-2.0
#include "examples/train/dropout_masks.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace ddprun::train {
namespace {

at::Tensor draw(at::IntArrayRef shape, double dropped, const at::Generator& generator) {
  const double kept = 1 - dropped;
  return at::empty(shape, at::kFloat).bernoulli_(kept, generator).div_(kept);
}

}  // namespace

DropoutMasks draw_dropout_masks(std::uint64_t seed, std::int64_t num_samples, std::int64_t first,
                                std::int64_t stride) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor features = draw({num_samples, 64, 12, 12}, kDroppedFeatures, generator);
  const at::Tensor hidden = draw({num_samples, 128}, kDroppedHidden, generator);
  if (stride == 1) return {features, hidden};
  const at::Tensor own = at::arange(first, num_samples, stride, at::kLong);
  return {features.index_select(0, own), hidden.index_select(0, own)};
}

}  // namespace ddprun::train
