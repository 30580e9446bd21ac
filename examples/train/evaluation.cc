// SPDX-License-Identifier: Apache-2.0
#include "examples/train/evaluation.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {
namespace {

constexpr std::int64_t kBatchSize = 256;
constexpr int kLoss = 0, kCorrect = 1, kSamples = 2;

}  // namespace

Totals::Totals(c10::Device device)
    : values_(at::zeros({3}, at::TensorOptions().dtype(at::kDouble).device(device))) {}

void Totals::add_mean_loss(const at::Tensor& mean, std::int64_t count) {
  values_[kLoss] += mean * count;
}
void Totals::add_loss(double sum) { values_[kLoss] += sum; }
void Totals::add_correct(const at::Tensor& count) { values_[kCorrect] += count; }
void Totals::add_samples(std::int64_t count) { values_[kSamples] += static_cast<double>(count); }

void Totals::sum_over_ranks(Communicator& communicator) {
  communicator.all_reduce(torch_adapter::view_of(values_, "totals"), ReduceOp::kSum);
}

Totals Totals::copy() const {
  Totals totals(*this);
  totals.values_ = values_.clone();
  return totals;
}

double Totals::loss_sum() const { return values_[kLoss].item<double>(); }
double Totals::accuracy() const { return values_[kCorrect].item<double>() / samples(); }
double Totals::samples() const { return values_[kSamples].item<double>(); }

Totals evaluate(const Forward& forward, const Images& images, Communicator& communicator) {
  const c10::NoGradGuard no_grad;
  Totals totals(images.device());
  // Each rank takes every world-th image, with no padding. There may be more ranks than images.
  const std::int64_t count = images.count();
  const std::int64_t first = std::min<std::int64_t>(communicator.rank(), count);
  const at::Tensor mine =
      at::arange(first, count, communicator.size(), at::kLong).to(images.device());
  for (const at::Tensor& batch : mine.split(kBatchSize)) {
    if (batch.size(0) == 0) continue;
    const at::Tensor labels = images.labels(batch);
    const at::Tensor output = forward(images.pixels(batch));
    totals.add_mean_loss(at::nll_loss(output, labels), batch.size(0));
    totals.add_correct(output.argmax(1).eq(labels).sum());
    totals.add_samples(batch.size(0));
  }
  totals.sum_over_ranks(communicator);
  return totals;
}

}  // namespace ddprun::train
