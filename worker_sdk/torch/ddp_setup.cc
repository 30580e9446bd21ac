// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel's beginning and end: it compares the ranks' models, takes over the
// parameters, and lets them go.
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/env_names.h"
#include "common/error.h"
#include "common/text.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/ddp_impl.h"
#include "worker_sdk/torch/sparse_gradients.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;
namespace autograd = torch::autograd;

namespace {

UsageMode mode_of(const DdpOptions& options) {
  if (options.static_graph) return UsageMode::kStatic;
  return options.find_unused_parameters ? UsageMode::kFindUnused : UsageMode::kAll;
}

bool debugs_nan() {
  const char* const words = std::getenv(env::kDebug);
  if (words == nullptr) return false;
  for (std::string_view rest = words; !rest.empty();) {
    if (take_until(rest, ",") == "nan") return true;
  }
  return false;
}

// Options on which the ranks must agree, too.
std::vector<ModelEntry> entries_of(const DdpOptions& options) {
  const auto on = [](bool value) { return std::string(value ? "on" : "off"); };
  return {{"option find_unused_parameters", on(options.find_unused_parameters)},
          {"option static_graph", on(options.static_graph)},
          {"option broadcast_buffers", on(options.broadcast_buffers)},
          {"option zero", to_string(options.zero)}};
}

void refuse_with_zero(bool is_set, const char* what) {
  if (!is_set) return;
  throw Error(ErrorCode::kUnsupported, concat("DdpOptions::zero: not with ", what,
                                              ": it needs whole averages on every rank"));
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
  throw Error(ErrorCode::kInvalidArgument,
              concat(kind, " ", state.name, sparse ? " is sparse" : "'s elements share memory",
                     ": it can't be sent; ", sparse ? "give a dense one" : "clone() it first",
                     ", or name it in DdpOptions::ignored"));
}

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

// Parameters and buffers without those named in `ignored`. Error(kInvalidArgument): a name there
// that the module hasn't; one of the others that is sparse, or expanded.
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

// With DdpOptions::zero none: such a gradient is refused when it comes.
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

// Collective. Error(kInvalidArgument), the same on every rank, names the first rank whose `state`
// (names, dtypes, shapes, strides) or `more` differs from rank 0's.
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

}  // namespace

// On the accumulator of a parameter's gradient. A type of its own: to be known again.
class DdpBase::Impl::GradientHook final : public autograd::FunctionPostHook {
 public:
  GradientHook(Impl& ddp, std::size_t index) : ddp_(ddp), index_(index) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    ddp_.on_gradient(index_);
    return outputs;
  }

 private:
  Impl& ddp_;
  const std::size_t index_;
};

DdpBase::Impl::Impl(torch::nn::Module& module, Communicator& communicator,
                    const DdpOptions& options)
    : module_(module),
      communicator_(communicator),
      options_(options),
      checks_nan_(options.check_nan || debugs_nan()) {
  communicator_.follow_stream(current_torch_stream);
  const ModelState state = state_of(module, options_.ignored);
  for (const NamedTensor& buffer : state.buffers) buffers_.push_back(buffer.tensor);
  state_ = state.tensors();
  ignored_ = state.ignored_parameters;
  if (!state_.empty()) device_ = state_.front().device();
  check_same_model(state, entries_of(options_), communicator_, device_);
  check_zero(options_);
  const std::vector<ParameterSpec> trainable =
      trainable_parameters(state.parameters, sparse_parameters(module, options_.zero));
  check_nobody_averages();
  broadcast_tensors(state_, 0, communicator_, device_);
  reducer_.emplace(communicator_, trainable, options_.buckets,
                   ReducerSharding{options_.zero, [this](std::size_t b) { before_sending(b); }});
  if (!device_.is_cpu()) {
    device_steps_.emplace([device = device_] { return StreamEvent(device); });
    reducer_->set_marker([this](StepMark mark) { device_steps_->mark(mark); });
  }
  multiplied_.resize(parameters_.size());
  usage_.emplace(mode_of(options_), names_);
  if (usage_->mode() == UsageMode::kFindUnused) {
    // The order of arrival changes with the graph: buckets for good, the last parameters first.
    std::vector<std::size_t> order(parameters_.size());
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    reducer_->rebuild(order);
  }
  if (options_.comm_hook) reducer_->set_hook(options_.comm_hook);
  make_slots();
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    install_hook(index, parameters_[index]);
  }
  for (std::size_t i = 0; i < sparse_.size(); ++i) {
    install_hook(parameters_.size() + i, sparse_[i].tensor);
  }
}

DdpBase::Impl::~Impl() {
  *self_ = nullptr;
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
  // Gradients lie in the communicator's memory, which goes now.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (gradient.is_same(slots_[i])) gradient = at::Tensor();
  }
}

std::vector<ParameterSpec> DdpBase::Impl::trainable_parameters(
    const std::vector<NamedTensor>& parameters, const std::set<const void*>& sparse) {
  std::vector<ParameterSpec> specs;
  std::set<const void*> known;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad()) {
      frozen_.push_back({name, parameter});
      continue;
    }
    // One that several modules share is listed under each name; it has one gradient.
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
    specs.push_back(std::move(spec));
    parameters_.push_back(parameter);
    names_.push_back(name);
  }
  return specs;
}

at::Tensor DdpBase::Impl::bytes_of_bucket(std::size_t number) {
  const TensorView bucket = reducer_->bucket(number);
  const auto bytes = static_cast<std::int64_t>(bucket.size_bytes());
  return at::from_blob(bucket.data, {bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
}

void DdpBase::Impl::make_slots() {
  // Not views of a bucket tensor but tensors of their own over its memory: autograd refuses to
  // detach a view in place, which Optimizer::zero_grad(false) does.
  for (std::size_t b = 0; b < reducer_->num_buckets(); ++b) bytes_of_bucket(b).zero_();
  slots_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    const auto options = at::TensorOptions().dtype(parameter.scalar_type()).device(device_);
    void* data = reducer_->gradient(i).data;
    // PyTorch's gradient layout contract: the parameter's strides where it is dense.
    slots_.push_back(parameter.is_non_overlapping_and_dense()
                         ? at::from_blob(data, parameter.sizes(), parameter.strides(), options)
                         : at::from_blob(data, parameter.sizes(), options));
  }
}

void DdpBase::Impl::check_nobody_averages() const {
  if (parameters_.empty() && sparse_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the model has no parameter that requires a gradient: there is nothing to average; "
                "are its layers registered (register_module, register_parameter)?");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (const auto& hook : autograd::impl::grad_accumulator(parameters_[i])->post_hooks()) {
      if (dynamic_cast<const GradientHook*>(hook.get()) == nullptr) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  concat("another DistributedDataParallel averages the gradient of ", names_[i],
                         ": wrap a model once, or destroy that one first"));
    }
  }
}

void DdpBase::Impl::install_hook(std::size_t index, const at::Tensor& parameter) {
  auto accumulator = autograd::impl::grad_accumulator(parameter);
  const std::uintptr_t key =
      accumulator->add_post_hook(std::make_unique<GradientHook>(*this, index));
  if (index < parameters_.size()) accumulators_.push_back(accumulator.get());
  hooks_.push_back({std::move(accumulator), key});
}

}  // namespace ddprun
