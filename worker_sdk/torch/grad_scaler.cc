// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/grad_scaler.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/torch/kept_on_error.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {
namespace {

void require_scaler(bool holds, const std::string& what) {
  if (!holds) throw_invalid("GradScaler: ", what);
}

}  // namespace

GradScaler::GradScaler(c10::Device device, Communicator* communicator,
                       const GradScalerOptions& options)
    : options_(options), communicator_(communicator) {
  require_scaler(std::isfinite(options.init_scale) && options.init_scale > 0,
                 concat("init_scale is ", options.init_scale, ": it must be a positive number"));
  require_scaler(std::isfinite(options.growth_factor) && options.growth_factor > 1,
                 concat("growth_factor is ", options.growth_factor, ": it must be more than 1"));
  require_scaler(
      options.backoff_factor > 0 && options.backoff_factor < 1,
      concat("backoff_factor is ", options.backoff_factor, ": it must lie between 0 and 1"));
  require_scaler(options.growth_interval > 0,
                 concat("growth_interval is ", options.growth_interval, ": it must be positive"));
  const auto floats = at::TensorOptions().dtype(at::kFloat).device(device);
  scale_ = at::full({}, options.init_scale, floats);
  growth_tracker_ = at::zeros({}, floats.dtype(at::kInt));
  found_inf_ = at::zeros({}, floats);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const { return loss * scale_; }

bool GradScaler::unscale(const std::vector<at::Tensor>& gradients) {
  return unscale_async(gradients).item<float>() == 0;
}

at::Tensor GradScaler::unscale_async(const std::vector<at::Tensor>& gradients) {
  const c10::NoGradGuard no_grad;
  std::map<std::pair<at::ScalarType, at::DeviceIndex>, std::vector<at::Tensor>> by_kind;
  for (const at::Tensor& gradient : gradients) {
    require_scaler(gradient.scalar_type() != at::kHalf,
                   "a gradient is float16: keep parameters in float32, Autocast casts them");
    require_scaler(!divided_.contains(gradient.const_data_ptr()),
                   "unscale() was called for these gradients already since the last update()");
    by_kind[{gradient.scalar_type(), gradient.device().index()}].push_back(gradient);
  }
  for (const at::Tensor& gradient : gradients) {
    if (gradient.numel() > 0) divided_.emplace(gradient.const_data_ptr(), gradient);
  }
  // As PyTorch, computes the reciprocal in float64.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found = at::zeros_like(found_inf_);
  for (auto& [kind, list] : by_kind) {
    const at::Device device = list.front().device();
    at::Tensor found_there = found.to(device);  // `found` itself if on that device
    at::_amp_foreach_non_finite_check_and_unscale_(list, found_there, inverse.to(device));
    if (!found_there.is_same(found)) found = at::maximum(found, found_there.to(found.device()));
  }
  if (communicator_ && communicator_->size() > 1) {
    // Averaged gradients are the same on all ranks; others may differ.
    const torch_adapter::KeptOnError kept(*communicator_, {found});
    communicator_->all_reduce(torch_adapter::view_of(found, "found_inf"), ReduceOp::kMax);
  }
  found_inf_ = at::maximum(found_inf_, found);
  unscaled_ = true;
  return found;
}

void GradScaler::update() {
  require_scaler(unscaled_, "update() without unscale() before it");
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  found_inf_.zero_();
  unscaled_ = false;
  divided_.clear();
}

double GradScaler::current_scale() const { return scale_.item<float>(); }

std::int64_t GradScaler::growth_tracker() const { return growth_tracker_.item<int>(); }

std::vector<std::pair<std::string_view, at::Tensor>> GradScaler::state() const {
  return {{"scale", scale_}, {"growth_tracker", growth_tracker_}};
}

}  // namespace ddprun
