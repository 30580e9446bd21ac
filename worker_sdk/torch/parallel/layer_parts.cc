// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/layer_parts.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/parallel/tensor_collectives.h"

namespace ddprun {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  return tensor.defined() ? c10::str(tensor.sizes()) : "none";
}

void check_shape(const PartOfWhole& each, const Communicator& group) {
  std::string wanted = "none";
  if (each.part.defined()) {
    std::vector<std::int64_t> sizes = each.part.sizes().vec();
    if (each.dim != kWhole) sizes.at(static_cast<std::size_t>(each.dim)) *= group.size();
    wanted = c10::str(at::IntArrayRef(sizes));
  }
  if (shape_text(each.whole) == wanted) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat(each.what, " is given as ", shape_text(each.whole), ": the whole layer's is ",
                     wanted));
}

}  // namespace

void load_parts(const std::vector<PartOfWhole>& parts, const Communicator& group) {
  const c10::NoGradGuard no_grad;
  for (const PartOfWhole& each : parts) check_shape(each, group);
  for (const PartOfWhole& each : parts) {
    if (!each.part.defined()) continue;
    each.part.copy_(each.dim == kWhole
                        ? each.whole
                        : torch_adapter::own_part(each.whole, each.dim, group, each.what));
  }
}

at::Tensor full_tensor(const at::Tensor& part, std::int64_t dim, Communicator& group) {
  if (!part.defined()) return {};
  const c10::NoGradGuard no_grad;
  if (dim == kWhole || group.size() == 1) return part.detach().clone();
  return torch_adapter::gather(part.detach(), dim, group);
}

std::optional<at::Tensor> given(const at::Tensor& parameter) {
  return parameter.defined() ? std::optional(parameter) : std::nullopt;
}

at::Tensor in_autocast(const at::Tensor& tensor) {
  const c10::DeviceType device = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

std::optional<at::Tensor> in_autocast(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(in_autocast(*tensor)) : std::nullopt;
}

}  // namespace ddprun
