// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/used_parameters.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

namespace ddprun::torch_adapter {

using torch::autograd::Node;

std::vector<std::size_t> unreached(const std::vector<at::Tensor>& outputs,
                                   const std::vector<Node*>& accumulators) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> to_visit;
  const auto reach = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) to_visit.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    reach(torch::autograd::impl::gradient_edge(output).function.get());
  }
  while (!to_visit.empty()) {
    Node* node = to_visit.back();
    to_visit.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) reach(edge.function.get());
  }
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < accumulators.size(); ++i) {
    if (!seen.contains(accumulators[i])) result.push_back(i);
  }
  return result;
}

}  // namespace ddprun::torch_adapter
