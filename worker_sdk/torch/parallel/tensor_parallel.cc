// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/tensor_parallel.h"

#include <ATen/ATen.h>

#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/parallel/region_function.h"
#include "worker_sdk/torch/parallel/tensor_collectives.h"

namespace ddprun {
namespace {

using torch::autograd::Function;
using torch_adapter::all_reduced;
using torch_adapter::gather;
using torch_adapter::gathered;
using torch_adapter::own_part;
using torch_adapter::sum_scattered;

constexpr const char* kPart = "a dimension of size";

// Whoever made a tensor may still need it: what is summed in place is a copy.
at::Tensor sum_of(const at::Tensor& tensor, Communicator& group) {
  return all_reduced(tensor.clone(at::MemoryFormat::Contiguous), group);
}

at::Tensor copy_of_part(const at::Tensor& whole, std::int64_t dim, const Communicator& group) {
  return own_part(whole, dim, group, kPart).clone(at::MemoryFormat::Contiguous);
}

struct CopyToRegion : Function<CopyToRegion> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* group) {
    keep_group(context, group);
    return x;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {sum_of(gradients[0], kept_group(context)), {}};
  }
};

struct ReduceFromRegion : Function<ReduceFromRegion> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* group) {
    keep_group(context, group);
    return sum_of(x, *group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    kept_group(context);
    return {gradients[0], {}};
  }
};

struct ScatterToRegion : Function<ScatterToRegion> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* group,
                            std::int64_t dim) {
    keep_group(context, group);
    context->saved_data["dim"] = dim;
    return copy_of_part(x, dim, *group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Communicator& group = kept_group(context);
    return {gather(gradients[0], context->saved_data["dim"].toInt(), group), {}, {}};
  }
};

struct GatherFromRegion : Function<GatherFromRegion> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* group,
                            std::int64_t dim) {
    keep_group(context, group);
    context->saved_data["dim"] = dim;
    return gather(x, dim, *group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Communicator& group = kept_group(context);
    return {copy_of_part(gradients[0], context->saved_data["dim"].toInt(), group), {}, {}};
  }
};

struct GatherSequence : Function<GatherSequence> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* group) {
    keep_group(context, group);
    return gathered(x, *group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {sum_scattered(gradients[0], kept_group(context)), {}};
  }
};

struct ReduceScatterSequence : Function<ReduceScatterSequence> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* group) {
    keep_group(context, group);
    return sum_scattered(x, *group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gathered(gradients[0], kept_group(context)), {}};
  }
};

}  // namespace

at::Tensor copy_to_region(const at::Tensor& tensor, Communicator& group) {
  return group.size() == 1 ? tensor : CopyToRegion::apply(tensor, &group);
}

at::Tensor reduce_from_region(const at::Tensor& tensor, Communicator& group) {
  return group.size() == 1 ? tensor : ReduceFromRegion::apply(tensor, &group);
}

at::Tensor scatter_to_region(const at::Tensor& tensor, Communicator& group, std::int64_t dim) {
  return group.size() == 1 ? tensor : ScatterToRegion::apply(tensor, &group, dim);
}

at::Tensor gather_from_region(const at::Tensor& tensor, Communicator& group, std::int64_t dim) {
  return group.size() == 1 ? tensor : GatherFromRegion::apply(tensor, &group, dim);
}

at::Tensor gather_sequence(const at::Tensor& tensor, Communicator& group) {
  return group.size() == 1 ? tensor : GatherSequence::apply(tensor, &group);
}

at::Tensor reduce_scatter_sequence(const at::Tensor& tensor, Communicator& group) {
  return group.size() == 1 ? tensor : ReduceScatterSequence::apply(tensor, &group);
}

at::Tensor region_dropout(const at::Tensor& part, double p, bool is_training,
                          const Communicator& group, std::int64_t dim) {
  if (!(p >= 0 && p <= 1)) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("region_dropout: p is ", p, ": it must be within 0 … 1"));
  }
  if (!is_training || p == 0) return part;
  if (group.size() == 1) return at::dropout(part, p, true);
  std::vector<std::int64_t> sizes = part.sizes().vec();
  sizes.at(static_cast<std::size_t>(dim < 0 ? dim + part.dim() : dim)) *= group.size();
  const at::Tensor kept = at::empty(sizes, part.options().requires_grad(false)).bernoulli_(1 - p);
  const at::Tensor own = own_part(kept, dim, group, kPart);
  return part * (p == 1 ? own : own / (1 - p));
}

}  // namespace ddprun
