// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/wrapped_model.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <utility>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/sparse_gradients.h"

namespace ddprun::torch_adapter {
namespace {

// Returns the options on which the ranks must agree, too.
std::vector<ModelEntry> entries_of(const DdpOptions& options) {
  const auto on = [](bool value) { return std::string(value ? "on" : "off"); };
  return {{"option find_unused_parameters", on(options.find_unused_parameters)},
          {"option static_graph", on(options.static_graph)},
          {"option broadcast_buffers", on(options.broadcast_buffers)},
          {"option zero", to_string(options.zero)}};
}

void refuse_with_zero(bool is_set, const char* what) {
  if (!is_set) return;
  throw_error(ErrorCode::kUnsupported, "DdpOptions::zero: not with ", what,
              ": it needs whole averages on every rank");
}

void check_zero(const DdpOptions& options) {
  if (options.zero == ZeroStage::kOff) return;
  refuse_with_zero(options.comm_hook != nullptr, "comm_hook");
  refuse_with_zero(options.find_unused_parameters, "find_unused_parameters");
  refuse_with_zero(options.static_graph, "static_graph");
}

std::string shape_text(const at::Tensor& tensor) {
  std::string text = concat(c10::toString(tensor.scalar_type()), " ", tensor.sizes());
  if (!tensor.is_contiguous()) text += concat(" with strides ", tensor.strides());
  if (!tensor.requires_grad()) text += ", no gradient";
  return text;
}

// Refuses a tensor that can't be sent as it is.
void check_sendable(const char* kind, const NamedTensor& state) {
  const bool sparse = state.tensor.layout() != c10::kStrided;
  if (!sparse && at::has_internal_overlap(state.tensor) != at::MemOverlap::Yes) return;
  throw_invalid(kind, " ", state.name, sparse ? " is sparse" : "'s elements share memory",
                ": it can't be sent; ", sparse ? "give a dense one" : "clone() it first",
                ", or name it in DdpOptions::ignored");
}

// Gives a layer's own parameters without the copy that named_parameters() makes of their names.
struct OwnParameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& layer) {
    return layer.*(&OwnParameters::parameters_);
  }
};

// A module's parameters and buffers, in its order; a tensor that several modules share is listed
// under each name.
struct ModelState {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
  std::vector<at::Tensor> ignored_parameters;

  std::vector<at::Tensor> tensors() const {  // parameters, then buffers
    std::vector<at::Tensor> all;
    for (const auto& each : parameters) all.push_back(each.tensor);
    for (const auto& each : buffers) all.push_back(each.tensor);
    return all;
  }
};

// Returns parameters and buffers without those named in `ignored`. Error(kInvalidArgument): an
// ignored name that the module hasn't; another tensor that is sparse or expanded.
ModelState state_of(const torch::nn::Module& module, const std::vector<std::string>& ignored) {
  ModelState state;
  std::set<std::string> unknown(ignored.begin(), ignored.end());
  const auto add = [&](const char* kind, const auto& items, std::vector<NamedTensor>& list) {
    for (const auto& item : items) {
      unknown.erase(item.key());
      if (std::ranges::find(ignored, item.key()) != ignored.end()) continue;
      list.push_back({item.key(), item.value()});
      check_sendable(kind, list.back());
    }
  };
  add("parameter", module.named_parameters(), state.parameters);
  add("buffer", module.named_buffers(), state.buffers);
  for (const auto& item : module.named_parameters()) {
    const bool is_ignored = std::ranges::find(ignored, item.key()) != ignored.end();
    if (is_ignored) state.ignored_parameters.push_back(item.value());
  }
  if (unknown.empty()) return state;
  throw_invalid("DdpOptions::ignored has \"", one_line(*unknown.begin()),
                "\": the model has no parameter or buffer of that name");
}

// Returns the parameters with sparse gradients. With DdpOptions::zero it returns none: such a
// gradient is refused when it comes.
std::set<const void*> sparse_parameters(const torch::nn::Module& module, ZeroStage zero) {
  std::set<const void*> found;
  if (zero != ZeroStage::kOff) return found;
  const auto look_at = [&found](const torch::nn::Module& layer) {
    if (!has_sparse_gradient(layer)) return;
    for (const at::Tensor& weight : layer.parameters()) found.insert(weight.unsafeGetTensorImpl());
  };
  look_at(module);
  for (const auto& layer : module.modules(/*include_self=*/false)) look_at(*layer);
  return found;
}

// Checks that all ranks have the same model. Collective. Error(kInvalidArgument), the same on every
// rank, names the first rank whose `state` (names, dtypes, shapes, strides) or `more` differs from
// rank 0's.
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
    if (!report.empty()) throw_invalid("the ranks' models differ: ", report);
  }
}

}  // namespace

WrappedModel::WrappedModel(const torch::nn::Module& module, Communicator& communicator,
                           const DdpOptions& options)
    : module_(module), communicator_(communicator), options_(options) {
  communicator_.follow_stream(current_torch_stream);
  const ModelState state = state_of(module, options_.ignored);
  for (const NamedTensor& buffer : state.buffers) buffers_.push_back(buffer.tensor);
  state_ = state.tensors();
  ignored_ = state.ignored_parameters;
  if (!state_.empty()) device_ = state_.front().device();
  check_same_model(state, entries_of(options_), communicator_, device_);
  check_zero(options_);
  sort_out(state.parameters, sparse_parameters(module, options_.zero));
}

void WrappedModel::sort_out(const std::vector<NamedTensor>& parameters,
                            const std::set<const void*>& sparse) {
  std::set<const void*> known;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad()) {
      frozen_.push_back({name, parameter});
      continue;
    }
    // A parameter that several modules share is listed under each name, but has one gradient.
    const void* const identity = parameter.unsafeGetTensorImpl();
    if (!known.insert(identity).second) continue;
    if (sparse.contains(identity)) {
      sparse_.push_back({name, parameter});
      continue;
    }
    ParameterSpec spec;
    spec.name = name;
    spec.count = static_cast<std::size_t>(parameter.numel());
    spec.dtype = gradient_dtype_of(parameter, "parameter " + name);
    spec.device = comm_device_of(parameter);
    spec.shape = parameter.sizes().vec();
    if (parameter.is_complex()) {
      spec.count *= 2;
      spec.shape.push_back(2);
    }
    specs_.push_back(std::move(spec));
    parameters_.push_back(parameter);
  }
  num_frozen_as_wrapped_ = frozen_.size();
}

UsageMode WrappedModel::usage_mode() const {
  if (options_.static_graph) return UsageMode::kStatic;
  return options_.find_unused_parameters ? UsageMode::kFindUnused : UsageMode::kAll;
}

std::vector<std::string> WrappedModel::names() const {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : specs_) names.push_back(spec.name);
  return names;
}

void WrappedModel::send_state(int root, bool with_buffers) const {
  const std::size_t num_own = with_buffers ? 0 : buffers_.size();
  broadcast_tensors({state_.begin(), state_.end() - static_cast<std::ptrdiff_t>(num_own)}, root,
                    communicator_, device_);
}

void WrappedModel::send_buffers(int root) {
  if (!buffer_broadcast_) buffer_broadcast_.emplace(buffers_, device_);
  buffer_broadcast_->run(root, communicator_);
}

void WrappedModel::forget_gradients() const {
  for (const auto* tensors : {&parameters_, &ignored_}) {
    for (const at::Tensor& parameter : *tensors) parameter.mutable_grad().reset();
  }
  for (const NamedTensor& each : sparse_) each.tensor.mutable_grad().reset();
}

void WrappedModel::check_frozen() const {
  for (const NamedTensor& each : frozen_) {
    if (!each.tensor.requires_grad()) continue;
    throw_invalid("parameter ", each.name, " requires a gradient now, it was frozen before: ",
                  "its gradient would not be averaged; wrap the model anew");
  }
}

bool WrappedModel::has_known_parameters() const {
  auto known = owned_.begin();
  const auto owns_them = [&](const torch::nn::Module& layer) {
    for (const auto& item : OwnParameters::of(layer)) {
      if (known == owned_.end() || *known != item.value().unsafeGetTensorImpl()) return false;
      ++known;
    }
    return true;
  };
  return owns_them(module_) &&
         std::ranges::all_of(layers_, [&](const auto& layer) { return owns_them(*layer); }) &&
         known == owned_.end();
}

// A walk through all layers takes too long for each forward, so most look only at what the known
// layers own.
void WrappedModel::check_nothing_is_new() {
  constexpr std::uint64_t kLongestPause = 256;
  ++num_looks_;
  const bool is_due = std::has_single_bit(num_looks_) || num_looks_ % kLongestPause == 0;
  if (is_due || !has_known_parameters()) look_at_all_parameters();
}

void WrappedModel::look_at_all_parameters() {
  std::unordered_set<const void*> known;
  for (const auto* tensors : {&state_, &ignored_}) {
    for (const at::Tensor& each : *tensors) known.insert(each.unsafeGetTensorImpl());
  }
  std::unordered_set<const void*> were_frozen;  // those that came late
  for (std::size_t i = num_frozen_as_wrapped_; i < frozen_.size(); ++i) {
    were_frozen.insert(frozen_[i].tensor.unsafeGetTensorImpl());
  }
  frozen_.erase(frozen_.begin() + static_cast<std::ptrdiff_t>(num_frozen_as_wrapped_),
                frozen_.end());
  for (const auto& item : module_.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (known.contains(parameter.unsafeGetTensorImpl())) continue;
    if (parameter.requires_grad() && !were_frozen.contains(parameter.unsafeGetTensorImpl())) {
      throw_invalid("parameter ", item.key(),
                    " was added or replaced since the model was wrapped: its gradient would not "
                    "be averaged; make the model whole before DistributedDataParallel");
    }
    frozen_.push_back({item.key(), parameter});
  }
  layers_ = module_.modules(/*include_self=*/false);
  owned_.clear();
  const auto add = [this](const torch::nn::Module& layer) {
    for (const auto& item : OwnParameters::of(layer)) {
      owned_.push_back(item.value().unsafeGetTensorImpl());
    }
  };
  add(module_);
  for (const auto& layer : layers_) add(*layer);
}

}  // namespace ddprun::torch_adapter
