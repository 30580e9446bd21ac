// SPDX-License-Identifier: Apache-2.0
// The update rules of a FlatOptimizer with torch.optim's names, defaults and meaning.
#pragma once

#include <variant>

namespace ddprun {

struct SgdRule {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // needs a momentum and no dampening
  bool maximize = false;
};

struct AdamRule {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // added to the gradient
  bool amsgrad = false;
  bool maximize = false;
};

struct AdamWRule {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // taken off the parameter, not added to its gradient
  bool amsgrad = false;
  bool maximize = false;
};

using UpdateRule = std::variant<SgdRule, AdamRule, AdamWRule>;

}  // namespace ddprun
