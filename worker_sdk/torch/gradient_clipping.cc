// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/gradient_clipping.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <map>
#include <tuple>

#include "common/throw_error.h"

namespace ddprun {
namespace {

void check_max_norm(const ClipOptions& options) {
  if (options.max_norm >= 0) return;
  throw_invalid("clipping: max_norm is ", options.max_norm, ": it must not be negative");
}

}  // namespace

at::Tensor clip_gradient_norm(const std::vector<at::Tensor>& gradients,
                              const ClipOptions& options) {
  const c10::NoGradGuard no_grad;
  check_max_norm(options);
  if (gradients.empty()) return at::zeros({}, at::kFloat);
  const at::Device device = gradients.front().device();
  std::vector<at::Tensor> norms = at::_foreach_norm(gradients, options.norm_type);
  at::ScalarType dtype = gradients.front().scalar_type();
  for (const at::Tensor& norm : norms) dtype = at::promote_types(dtype, norm.scalar_type());
  for (at::Tensor& norm : norms) {
    if (norm.device() != device || norm.scalar_type() != dtype) norm = norm.to(device, dtype);
  }
  const at::Tensor total = at::linalg_vector_norm(at::stack(norms), options.norm_type);
  clip_to_norm(gradients, total, options);
  return total;
}

void clip_to_norm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm,
                  const ClipOptions& options) {
  const c10::NoGradGuard no_grad;
  check_max_norm(options);
  if (options.error_if_nonfinite && !at::isfinite(norm).item<bool>()) {
    throw_invalid("the norm of the gradients is ", norm.item<double>(), ": they can't be clipped");
  }
  const at::Tensor scale = (options.max_norm / (norm + 1e-6)).clamp_max(1.0);
  if (norm.device().is_cpu() && scale.item<double>() == 1) return;  // saves a pass
  using Kind = std::tuple<at::ScalarType, at::DeviceType, at::DeviceIndex>;
  std::map<Kind, std::vector<at::Tensor>> by_kind;
  for (const at::Tensor& gradient : gradients) {
    const at::Device device = gradient.device();
    by_kind[{gradient.scalar_type(), device.type(), device.index()}].push_back(gradient);
  }
  for (const auto& [kind, list] : by_kind) {
    const at::ScalarType dtype = list.front().scalar_type();
    const at::Tensor there = scale.to(list.front().device());
    if (at::isReducedFloatingType(dtype) && scale.scalar_type() != dtype) {
      // CUDA would first round a scale on the device to their dtype. Then their scale would differ
      // from the other gradients'.
      for (const at::Tensor& each : list) each.copy_(each.to(at::kFloat).mul_(there));
    } else {
      at::_foreach_mul_(list, there.to(dtype));  // one dtype, so few kernels take all
    }
  }
}

}  // namespace ddprun
