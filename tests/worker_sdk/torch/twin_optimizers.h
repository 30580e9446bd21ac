// SPDX-License-Identifier: Apache-2.0
// The effects of an overflow on an optimiser, on any device.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "common/text.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/torch/flat_optimizer.h"

namespace ddprun::testing {

// Two optimisers over equal parameters and gradients.
struct TwinOptimizers {
  TwinOptimizers(const UpdateRule& rule, at::ScalarType dtype, at::Device device = at::kCPU) {
    const auto options = at::TensorOptions().dtype(dtype).device(device);
    for (const std::vector<std::int64_t>& shape :
         std::vector<std::vector<std::int64_t>>{{3, 4}, {5}, {2, 2}, {7}}) {
      const std::string name = concat("p", ours.size());
      ours.push_back({name, torch::randn(shape, options).requires_grad_(true)});
      theirs.push_back({name, ours.back().tensor.detach().clone().requires_grad_(true)});
    }
    unread.emplace(std::vector<ParameterGroup>{{ours, rule}});
    read.emplace(std::vector<ParameterGroup>{{theirs, rule}});
  }

  // Draws new gradients. Without `last` the last parameter has none.
  void draw(bool last) {
    for (std::size_t i = 0; i < ours.size(); ++i) {
      at::Tensor &mine = ours[i].tensor.mutable_grad(), &other = theirs[i].tensor.mutable_grad();
      mine.reset();
      other.reset();
      if (!last && i + 1 == ours.size()) continue;
      mine = torch::randn_like(ours[i].tensor.detach());
      other = mine.clone();
    }
  }

  std::vector<NamedTensor> ours, theirs;
  std::optional<FlatOptimizer> unread, read;
};

// An overflow that nobody reads has the same effect as one that is read. Steps are skipped first,
// in the middle, and before the set of gradients changes.
inline void check_unread_overflows(at::Device device) {
  const std::string overflows = "ii.i..i.", without_last = "...ll.ll";
  const std::vector<UpdateRule> rules = {
      SgdRule{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
      SgdRule{.lr = 0.1, .momentum = 0.9, .dampening = 0.5}, AdamRule{.weight_decay = 0.1},
      AdamWRule{.amsgrad = true}, AdamWRule{.weight_decay = 0.1}};
  for (std::size_t r = 0; r < rules.size(); ++r) {
    for (const at::ScalarType dtype : {torch::kFloat, torch::kDouble}) {
      TwinOptimizers twins(rules[r], dtype, device);
      for (std::size_t step = 0; step < overflows.size(); ++step) {
        twins.draw(without_last[step] == '.');
        const bool is_found = overflows[step] == 'i';
        twins.unread->step(torch::full({}, is_found ? 1.0F : 0.0F, device));
        if (!is_found) twins.read->step();
        for (std::size_t i = 0; i < twins.ours.size(); ++i) {
          expect(twins.ours[i].tensor.equal(twins.theirs[i].tensor),
                 concat("rule ", r, ", ", dtype, ", step ", step, ": the same parameters"));
        }
      }
      const std::vector<NamedState> mine = twins.unread->state(), other = twins.read->state();
      expect(mine.size() == other.size(), "as much state");
      for (std::size_t i = 0; i < mine.size(); ++i) {
        expect(mine[i].tensor.equal(other[i].tensor),
               concat("rule ", r, ", ", dtype, ": ", mine[i].parameter, ".", mine[i].name));
      }
    }
  }
}

}  // namespace ddprun::testing
