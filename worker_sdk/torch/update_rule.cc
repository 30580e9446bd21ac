// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>
#include <string>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/update_rule_impl.h"

namespace ddprun {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, "optimiser: " + what);
}

void require_not_negative(const char* name, double value) {
  require(std::isfinite(value) && value >= 0,
          concat(name, " is ", value, ": it must be a number and not negative"));
}

void check(const SgdRule& rule) {
  require_not_negative("lr", rule.lr);
  require_not_negative("momentum", rule.momentum);
  require_not_negative("weight_decay", rule.weight_decay);
  require(!rule.nesterov || (rule.momentum > 0 && rule.dampening == 0),
          "nesterov needs a momentum and no dampening");
}

template <typename Adam>
void check(const Adam& rule) {
  require_not_negative("lr", rule.lr);
  require_not_negative("eps", rule.eps);
  require_not_negative("weight_decay", rule.weight_decay);
  for (const double beta : {rule.beta1, rule.beta2}) {
    require(beta >= 0 && beta < 1, concat("a beta is ", beta, ": it must lie in [0, 1)"));
  }
}

void apply(const SgdRule& rule, const UpdateArrays& arrays) {
  const bool has_momentum = rule.momentum != 0;
  at::_fused_sgd_(arrays.values, arrays.gradients,
                  has_momentum ? at::TensorList(arrays.states[0]) : at::TensorList(),
                  rule.weight_decay, rule.momentum, rule.lr, rule.dampening, rule.nesterov,
                  rule.maximize, arrays.is_first);
}

template <typename Adam>
void apply(const Adam& rule, const UpdateArrays& arrays) {
  constexpr bool kDecoupled = std::is_same_v<Adam, AdamWRule>;
  const auto fused = [&](auto call) {
    call(at::TensorList(arrays.values), at::TensorList(arrays.gradients),
         at::TensorList(arrays.states[0]), at::TensorList(arrays.states[1]),
         rule.amsgrad ? at::TensorList(arrays.states[2]) : at::TensorList(),
         at::TensorList(arrays.steps), rule.lr, rule.beta1, rule.beta2, rule.weight_decay, rule.eps,
         rule.amsgrad, rule.maximize);
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

std::vector<std::string_view> state_names(const UpdateRule& rule) {
  return std::visit([](const auto& each) { return names(each); }, rule);
}

void check_rule(const UpdateRule& rule) {
  std::visit([](const auto& each) { check(each); }, rule);
}

}  // namespace ddprun
