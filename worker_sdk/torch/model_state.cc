// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/model_state.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::torch_adapter {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::string text = concat(c10::toString(tensor.scalar_type()), " ", tensor.sizes());
  if (!tensor.is_contiguous()) text += concat(" with strides ", tensor.strides());
  if (!tensor.requires_grad()) text += ", no gradient";
  return text;
}

// What can't be sent as it is.
void check_sendable(const char* kind, const NamedTensor& state) {
  const bool sparse = state.tensor.layout() != c10::kStrided;
  if (!sparse && at::has_internal_overlap(state.tensor) != at::MemOverlap::Yes) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat(kind, " ", state.name, sparse ? " is sparse" : "'s elements share memory",
                     ": it can't be sent; ", sparse ? "give a dense one" : "clone() it first",
                     ", or name it in DdpOptions::ignored"));
}

}  // namespace

std::vector<at::Tensor> ModelState::tensors() const {
  std::vector<at::Tensor> all;
  for (const auto& each : parameters) all.push_back(each.tensor);
  for (const auto& each : buffers) all.push_back(each.tensor);
  return all;
}

ModelState state_of(const torch::nn::Module& module, const std::vector<std::string>& ignored) {
  ModelState state;
  std::set<std::string> unknown(ignored.begin(), ignored.end());
  const auto add = [&](const char* kind, const auto& items, std::vector<NamedTensor>& list) {
    for (const auto& item : items) {
      unknown.erase(item.key());
      if (std::find(ignored.begin(), ignored.end(), item.key()) != ignored.end()) continue;
      list.push_back({item.key(), item.value()});
      check_sendable(kind, list.back());
    }
  };
  add("parameter", module.named_parameters(), state.parameters);
  add("buffer", module.named_buffers(), state.buffers);
  for (const auto& item : module.named_parameters()) {
    const bool is_ignored = std::find(ignored.begin(), ignored.end(), item.key()) != ignored.end();
    if (is_ignored) state.ignored_parameters.push_back(item.value());
  }
  if (unknown.empty()) return state;
  throw Error(ErrorCode::kInvalidArgument,
              concat("DdpOptions::ignored has \"", one_line(*unknown.begin()),
                     "\": the model has no parameter or buffer of that name"));
}

void check_same_model(const ModelState& state, std::vector<ModelEntry> more,
                      Communicator& communicator, c10::Device device) {
  if (communicator.size() == 1) return;
  std::vector<ModelEntry> entries = std::move(more);
  for (const auto& each : state.parameters) {
    entries.push_back({"parameter " + each.name, shape_text(each.tensor)});
  }
  for (const auto& each : state.buffers) {
    entries.push_back({"buffer " + each.name, shape_text(each.tensor)});
  }
  const std::string mine = encode_model(entries);
  std::string rank_zeros = mine;
  broadcast_bytes(rank_zeros, 0, communicator, device);
  const std::string difference = first_model_difference(communicator.rank(), mine, rank_zeros);
  constexpr std::size_t kMaxReportBytes = 1024;
  for (const auto& report : gather_texts(difference, kMaxReportBytes, communicator, device)) {
    if (!report.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "the ranks' models differ: " + report);
    }
  }
}

}  // namespace ddprun::torch_adapter
