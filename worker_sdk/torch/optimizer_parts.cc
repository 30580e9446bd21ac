// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/optimizer_parts.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/mman.h>

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/large_memory.h"
#include "worker_sdk/ddp/update_kernels.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::torch_adapter {
namespace {

void require_rule(bool holds, const std::string& what) {
  if (!holds) throw_invalid("optimiser: ", what);
}

void require_not_negative(const char* name, double value) {
  require_rule(std::isfinite(value) && value >= 0,
               concat(name, " is ", value, ": it must be a number and not negative"));
}

void check(const SgdRule& rule) {
  require_not_negative("lr", rule.lr);
  require_not_negative("momentum", rule.momentum);
  require_not_negative("weight_decay", rule.weight_decay);
  require_rule(!rule.nesterov || (rule.momentum > 0 && rule.dampening == 0),
               "nesterov needs a momentum and no dampening");
}

template <typename Adam>
void check(const Adam& rule) {
  require_not_negative("lr", rule.lr);
  require_not_negative("eps", rule.eps);
  require_not_negative("weight_decay", rule.weight_decay);
  for (const double beta : {rule.beta1, rule.beta2}) {
    require_rule(beta >= 0 && beta < 1, concat("a beta is ", beta, ": it must lie in [0, 1)"));
  }
}

constexpr std::int64_t kElementsPerTask = 1 << 15;

// Runs `update(begin, count)`, one of ddprun's kernels, for parts of one array on LibTorch's
// compute threads.
template <typename Update>
void in_tasks(const at::Tensor& array, const Update& update) {
  at::parallel_for(0, array.numel(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    update(begin, static_cast<std::size_t>(end - begin));
  });
}

bool has_kernel(const at::Tensor& values) {
  return values.is_cpu() && values.scalar_type() == at::kFloat;
}

bool has_kernel(const SgdRule&, const at::Tensor& values) { return has_kernel(values); }

template <typename Adam>
bool has_kernel(const Adam& rule, const at::Tensor& values) {
  return has_kernel(values) && !rule.amsgrad;
}

// Returns whether the first update differs from the others: then the host must know whether it was
// left out.
bool first_is_other(const SgdRule& rule) { return rule.momentum != 0 && rule.dampening != 0; }

template <typename Adam>
bool first_is_other(const Adam&) {
  return false;
}

// LibTorch's operations take a tensor for each array. Arrays with equal steps share one, for each
// costs a kernel to fill.
std::vector<at::Tensor> step_tensors(const UpdateArrays& arrays) {
  const auto options = arrays.values.front().options().dtype(at::kFloat);
  std::map<float, at::Tensor> made;
  std::vector<at::Tensor> tensors;
  tensors.reserve(arrays.steps.size());
  for (const float step : arrays.steps) {
    at::Tensor& tensor = made[step];
    if (!tensor.defined()) {
      tensor = at::full({}, step, options);
      if (arrays.skipped.defined()) tensor.sub_(arrays.skipped);
    }
    tensors.push_back(tensor);
  }
  return tensors;
}

std::optional<at::Tensor> overflow_of(const UpdateArrays& arrays) {
  if (!arrays.overflow.defined()) return std::nullopt;
  return arrays.overflow;
}

float* elements(const at::Tensor& array, std::int64_t begin) {
  return array.mutable_data_ptr<float>() + begin;
}

void apply_kernel(const SgdRule& rule, const UpdateArrays& arrays) {
  SgdStep step{.gradient_factor = rule.maximize ? -1.F : 1.F,
               .weight_decay = static_cast<float>(rule.weight_decay),
               .momentum = static_cast<float>(rule.momentum),
               .gradient_share = static_cast<float>(1 - rule.dampening),
               .lr = static_cast<float>(rule.lr),
               .has_momentum = rule.momentum != 0,
               .nesterov = rule.nesterov};
  if (arrays.is_first) step.gradient_share = 1;  // the momentum is zero
  for (std::size_t i = 0; i < arrays.values.size(); ++i) {
    in_tasks(arrays.values[i], [&](std::int64_t begin, std::size_t count) {
      update_kernels().sgd(
          step, elements(arrays.values[i], begin), elements(arrays.gradients[i], begin),
          step.has_momentum ? elements(arrays.states[0][i], begin) : nullptr, count);
    });
  }
}

template <typename Adam>
void apply_kernel(const Adam& rule, const UpdateArrays& arrays) {
  constexpr bool kDecoupled = std::is_same_v<Adam, AdamWRule>;
  AdamStep step{
      .gradient_factor = rule.maximize ? -1.F : 1.F,
      .weight_decay = kDecoupled ? 0.F : static_cast<float>(rule.weight_decay),
      .value_factor = kDecoupled ? static_cast<float>(1 - rule.lr * rule.weight_decay) : 1.F,
      .one_minus_beta1 = static_cast<float>(1 - rule.beta1),
      .beta2 = static_cast<float>(rule.beta2),
      .one_minus_beta2 = static_cast<float>(1 - rule.beta2),
      .eps = static_cast<float>(rule.eps)};
  for (std::size_t i = 0; i < arrays.values.size(); ++i) {
    const double num_updates = arrays.steps[i];
    step.root_factor = static_cast<float>(1 / std::sqrt(1 - std::pow(rule.beta2, num_updates)));
    step.step_size = static_cast<float>(rule.lr / (1 - std::pow(rule.beta1, num_updates)));
    in_tasks(arrays.values[i], [&](std::int64_t begin, std::size_t count) {
      update_kernels().adam(
          step, elements(arrays.values[i], begin), elements(arrays.gradients[i], begin),
          elements(arrays.states[0][i], begin), elements(arrays.states[1][i], begin), count);
    });
  }
}

void apply(const SgdRule& rule, const UpdateArrays& arrays) {
  if (has_kernel(rule, arrays.values.front())) return apply_kernel(rule, arrays);
  const bool has_momentum = rule.momentum != 0;
  at::_fused_sgd_(arrays.values, arrays.gradients,
                  has_momentum ? at::TensorList(arrays.states[0]) : at::TensorList(),
                  rule.weight_decay, rule.momentum, rule.lr, rule.dampening, rule.nesterov,
                  rule.maximize, arrays.is_first, std::nullopt, overflow_of(arrays));
}

template <typename Adam>
void apply(const Adam& rule, const UpdateArrays& arrays) {
  if (has_kernel(rule, arrays.values.front())) return apply_kernel(rule, arrays);
  const std::vector<at::Tensor> steps = step_tensors(arrays);
  constexpr bool kDecoupled = std::is_same_v<Adam, AdamWRule>;
  const auto fused = [&](auto call) {
    call(at::TensorList(arrays.values), at::TensorList(arrays.gradients),
         at::TensorList(arrays.states[0]), at::TensorList(arrays.states[1]),
         rule.amsgrad ? at::TensorList(arrays.states[2]) : at::TensorList(), at::TensorList(steps),
         rule.lr, rule.beta1, rule.beta2, rule.weight_decay, rule.eps, rule.amsgrad, rule.maximize,
         std::nullopt, overflow_of(arrays));
  };
  if constexpr (kDecoupled) {
    fused([](auto... each) { at::_fused_adamw_(each...); });
  } else {
    fused([](auto... each) { at::_fused_adam_(each...); });
  }
}

std::vector<std::string_view> names(const SgdRule& rule) {
  if (rule.momentum == 0) return {};
  return {"momentum_buffer"};
}

template <typename Adam>
std::vector<std::string_view> names(const Adam& rule) {
  if (rule.amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

}  // namespace

void apply_rule(const UpdateRule& rule, const UpdateArrays& arrays) {
  std::visit([&](const auto& each) { apply(each, arrays); }, rule);
}

bool takes_overflow(const UpdateRule& rule, const at::Tensor& values) {
  return std::visit(
      [&](const auto& each) { return !has_kernel(each, values) && !first_is_other(each); }, rule);
}

std::vector<std::string_view> state_names(const UpdateRule& rule) {
  return std::visit([](const auto& each) { return names(each); }, rule);
}

void check_rule(const UpdateRule& rule) {
  std::visit([](const auto& each) { check(each); }, rule);
}

at::Tensor flat_memory(std::int64_t count, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return at::zeros({count}, options);
  const std::size_t size_bytes = static_cast<std::size_t>(count) * options.dtype().itemsize();
  const auto give_back = [size_bytes](void* data) { ::munmap(data, size_bytes); };
  return at::from_blob(map_large_memory(size_bytes), {count}, give_back, options);
}

at::Tensor piece_of(const at::Tensor& flat, std::size_t offset, std::int64_t count) {
  return flat.narrow(0, static_cast<std::int64_t>(offset), count);
}

std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()));
  std::int64_t next = 1;
  for (std::size_t i = strides.size(); i-- > 0;) {
    strides[i] = next;
    next *= tensor.size(static_cast<std::int64_t>(i));
  }
  return strides;
}

std::vector<GroupedParameter> grouped_parameters(std::vector<ParameterGroup> groups) {
  for (const ParameterGroup& group : groups) check_rule(group.rule);
  std::vector<GroupedParameter> all;
  std::unordered_map<const void*, std::size_t> group_of;
  std::set<std::string> names;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (NamedTensor& parameter : groups[g].parameters) {
      const at::Tensor& tensor = parameter.tensor;
      const auto [known, is_new] = group_of.emplace(tensor.unsafeGetTensorImpl(), g);
      if (!is_new && known->second != g) {
        throw_invalid("parameter ", parameter.name, " is in two groups of the optimiser");
      }
      if (!is_new || tensor.numel() == 0) continue;
      if (!names.insert(parameter.name).second) {
        throw_invalid("two parameters of the optimiser are named ", parameter.name);
      }
      gradient_dtype_of(tensor, "parameter " + parameter.name);
      if (tensor.is_complex()) {
        throw_error(ErrorCode::kUnsupported, "parameter ", parameter.name,
                    " is complex: this optimiser updates real ",
                    "numbers alone; give it to one of torch::optim");
      }
      all.push_back({std::move(parameter), g});
    }
  }
  return all;
}

}  // namespace ddprun::torch_adapter
