// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/tensor_parallel.h"

#include <ATen/ATen.h>

#include <vector>

#include "common/throw_error.h"
#include "worker_sdk/torch/parallel/region_function.h"
#include "worker_sdk/torch/tensor_collectives.h"

namespace ddprun {
namespace {

using torch::autograd::Function;
using torch_adapter::all_reduced;
using torch_adapter::gather;
using torch_adapter::gathered;
using torch_adapter::own_part;
using torch_adapter::sum_scattered;

constexpr const char* kPart = "a dimension of size";

// Parts lie along `dim`.
using Way = at::Tensor (*)(const at::Tensor& tensor, std::int64_t dim, Communicator& group);

at::Tensor same(const at::Tensor& tensor, std::int64_t, Communicator&) { return tensor; }

// Sums a copy in place: the tensor's owner may still need it.
at::Tensor sum_of(const at::Tensor& tensor, std::int64_t, Communicator& group) {
  return all_reduced(tensor.clone(at::MemoryFormat::Contiguous), group);
}

at::Tensor copy_of_part(const at::Tensor& whole, std::int64_t dim, Communicator& group) {
  return own_part(whole, dim, group, kPart).clone(at::MemoryFormat::Contiguous);
}

at::Tensor whole_sequence(const at::Tensor& part, std::int64_t, Communicator& group) {
  return gathered(part, group);
}

at::Tensor part_of_sum(const at::Tensor& summand, std::int64_t, Communicator& group) {
  return sum_scattered(summand, group);
}

// Applies kForward to a tensor, and kBackward to its gradient.
template <Way kForward, Way kBackward>
struct Region : Function<Region<kForward, kBackward>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* group,
                            std::int64_t dim) {
    keep_group(context, group);
    context->saved_data["dim"] = dim;
    return kForward(x, dim, *group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Communicator& group = kept_group(context);
    return {kBackward(gradients[0], context->saved_data["dim"].toInt(), group), {}, {}};
  }
};

template <Way kForward, Way kBackward>
at::Tensor go(const at::Tensor& tensor, Communicator& group, std::int64_t dim = 0) {
  return group.size() == 1 ? tensor : Region<kForward, kBackward>::apply(tensor, &group, dim);
}

}  // namespace

at::Tensor copy_to_region(const at::Tensor& tensor, Communicator& group) {
  return go<same, sum_of>(tensor, group);
}

at::Tensor reduce_from_region(const at::Tensor& tensor, Communicator& group) {
  return go<sum_of, same>(tensor, group);
}

at::Tensor scatter_to_region(const at::Tensor& tensor, Communicator& group, std::int64_t dim) {
  return go<copy_of_part, gather>(tensor, group, dim);
}

at::Tensor gather_from_region(const at::Tensor& tensor, Communicator& group, std::int64_t dim) {
  return go<gather, copy_of_part>(tensor, group, dim);
}

at::Tensor gather_sequence(const at::Tensor& tensor, Communicator& group) {
  return go<whole_sequence, part_of_sum>(tensor, group);
}

at::Tensor reduce_scatter_sequence(const at::Tensor& tensor, Communicator& group) {
  return go<part_of_sum, whole_sequence>(tensor, group);
}

at::Tensor region_dropout(const at::Tensor& part, double p, bool is_training,
                          const Communicator& group, std::int64_t dim) {
  if (!(p >= 0 && p <= 1)) throw_invalid("region_dropout: p is ", p, ": it must be within 0 … 1");
  if (!is_training || p == 0) return part;
  if (group.size() == 1) return at::dropout(part, p, true);
  std::vector<std::int64_t> sizes = part.sizes().vec();
  sizes.at(static_cast<std::size_t>(dim < 0 ? dim + part.dim() : dim)) *= group.size();
  const at::Tensor kept = at::empty(sizes, part.options().requires_grad(false)).bernoulli_(1 - p);
  const at::Tensor own = own_part(kept, dim, group, kPart);
  return part * (p == 1 ? own : own / (1 - p));
}

}  // namespace ddprun
