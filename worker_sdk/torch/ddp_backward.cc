// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/ddp_backward.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_set>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/worker_env.h"
#include "worker_sdk/core/worker_progress.h"
#include "worker_sdk/torch/sparse_gradients.h"

namespace ddprun::torch_adapter {

namespace autograd = torch::autograd;

namespace {

bool debugs_nan() {
  const auto words = debug_words([](const char* name) { return std::getenv(name); });
  return std::ranges::find(words, "nan") != words.end();
}

// Returns the numbers of those `accumulators` (leaves' AccumulateGrad) that no backward from
// `outputs` can reach, ascending. Undefined outputs, and those without a graph, reach nothing.
std::vector<std::size_t> unreached(const std::vector<at::Tensor>& outputs,
                                   const std::vector<autograd::Node*>& accumulators) {
  std::unordered_set<autograd::Node*> seen;
  std::vector<autograd::Node*> to_visit;
  const auto reach = [&](autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) to_visit.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    reach(autograd::impl::gradient_edge(output).function.get());
  }
  while (!to_visit.empty()) {
    autograd::Node* node = to_visit.back();
    to_visit.pop_back();
    for (const autograd::Edge& edge : node->next_edges()) reach(edge.function.get());
  }
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < accumulators.size(); ++i) {
    if (!seen.contains(accumulators[i])) result.push_back(i);
  }
  return result;
}

}  // namespace

// A hook on the accumulator of a parameter's gradient. Its own type makes it recognisable.
class DdpBackward::GradientHook final : public autograd::FunctionPostHook {
 public:
  GradientHook(DdpBackward& backward, std::size_t index) : backward_(backward), index_(index) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    backward_.on_gradient(index_);
    return outputs;
  }

 private:
  DdpBackward& backward_;
  const std::size_t index_;
};

void DdpBackward::check_nobody_averages(const WrappedModel& model) {
  if (model.parameters().empty() && model.sparse().empty()) {
    throw_invalid(
        "the model has no parameter that requires a gradient: there is nothing to average; "
        "are its layers registered (register_module, register_parameter)?");
  }
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    const auto accumulator = autograd::impl::grad_accumulator(model.parameters()[i]);
    for (const auto& hook : accumulator->post_hooks()) {
      if (dynamic_cast<const GradientHook*>(hook.get()) == nullptr) continue;
      throw_invalid("another DistributedDataParallel averages the gradient of ", model.name(i),
                    ": wrap a model once, or destroy that one first");
    }
  }
}

DdpBackward::DdpBackward(const WrappedModel& model, GradientBuckets& buckets, StepTimes& times)
    : model_(model),
      buckets_(buckets),
      times_(times),
      checks_nan_(model.options().check_nan || debugs_nan()),
      unused_(model, buckets) {
  for (const at::Tensor& parameter : model_.parameters()) install_hook(parameter);
  for (const Hook& hook : hooks_) accumulators_.push_back(hook.accumulator.get());
  for (const NamedTensor& each : model_.sparse()) install_hook(each.tensor);
}

DdpBackward::~DdpBackward() {
  *self_ = nullptr;
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
}

void DdpBackward::install_hook(const at::Tensor& parameter) {
  auto accumulator = autograd::impl::grad_accumulator(parameter);
  const std::uintptr_t key =
      accumulator->add_post_hook(std::make_unique<GradientHook>(*this, hooks_.size()));
  hooks_.push_back({std::move(accumulator), key});
}

void DdpBackward::expect(bool averages) {
  averages_ = averages;
  end_queued_ = unused_marked_ = false;  // the last backward may have left them if it threw
  unused_.forget();
}

void DdpBackward::after_forward(const std::vector<at::Tensor>& outputs) {
  ParameterUsage& usage = unused_.usage();
  if (!averages_ || !c10::GradMode::is_enabled() || usage.mode() == UsageMode::kAll) return;
  if (usage.mode() == UsageMode::kFindUnused)
    usage.expect_unused(unreached(outputs, accumulators_));
  // A backward that runs these hooks of the outputs is the outermost one. A backward inside another
  // (of a checkpointed part) ends before all gradients are there.
  for (const at::Tensor& output : outputs) {
    // A hook on a leaf would remain after this iteration.
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([self = self_](const at::Tensor&) {
      const auto* wanted = autograd::get_current_graph_task_exec_info();
      const bool for_parameters = wanted == nullptr || wanted->empty();  // false: autograd::grad()
      if (for_parameters && *self != nullptr && (*self)->averages_) (*self)->end_later();
    });
  }
}

void DdpBackward::on_gradient(std::size_t index) {
  const std::vector<at::Tensor>& parameters = model_.parameters();
  if (index >= parameters.size()) {  // a sparse one: end() averages it
    const NamedTensor& its = model_.sparse()[index - parameters.size()];
    if (checks_nan_ && its.tensor.grad().defined()) check_no_nan(its.tensor.grad(), its.name);
    if (averages_) end_later();
    return;
  }
  ParameterUsage& usage = unused_.usage();
  const bool defined = parameters[index].mutable_grad().defined();
  if (defined && checks_nan_) check_no_nan(parameters[index].grad(), model_.name(index));
  if (!averages_) {
    if (defined) usage.on_local_gradient(index);
    return;
  }
  end_later();
  if (!unused_marked_) {
    unused_marked_ = true;
    if (!usage.learning()) unused_.mark(usage.unused());
  }
  if (!defined && usage.mode() != UsageMode::kAll) return;  // as if not reached
  const bool is_complete = usage.on_gradient(index);
  if (model_.options().zero != ZeroStage::kGradients) buckets_.move_in(index, is_complete);
  if (is_complete) buckets_.reducer().mark_ready(index);
}

void DdpBackward::check_no_nan(const at::Tensor& gradient, const std::string& name) {
  const c10::NoGradGuard no_grad;
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  if (values.layout() != c10::kStrided || !at::isnan(values).any().item<bool>()) return;
  const Error error(ErrorCode::kInvalidArgument,
                    concat("the gradient of ", name, " on rank ", model_.communicator().rank(),
                           " has NaN, before it is averaged"));
  model_.communicator().abort(error.what());
  throw error;
}

void DdpBackward::end_later() {
  if (end_queued_) return;
  end_queued_ = true;
  autograd::Engine::get_default_engine().queue_callback([this] { end(); });
}

void DdpBackward::end() {
  ParameterUsage& usage = unused_.usage();
  Reducer& reducer = buckets_.reducer();
  end_queued_ = unused_marked_ = false;
  if (usage.learning()) {
    for (const std::size_t index : usage.learn()) reducer.mark_ready(index);
    unused_.mark(usage.unused());
  }
  if (usage.mode() == UsageMode::kFindUnused) unused_.mark_rest();
  at::Tensor answer;
  if (reducer.is_complete()) answer = unused_.ask();
  reducer.finalize(usage.advice());
  times_.step_ends();
  if (unused_.wants_answer()) unused_.hear(answer);
  unused_.take_back();
  buckets_.scale(scale_);
  average_sparse_gradients();
  unused_.settle();
  usage.end_iteration();
  if (model_.options().zero != ZeroStage::kOff) buckets_.leave_shards();
  WorkerProgress* const progress = model_.communicator().progress();
  if (progress != nullptr) progress->end_counted_step();
}

void DdpBackward::shadow() {
  const c10::NoGradGuard no_grad;
  Reducer& reducer = buckets_.reducer();
  buckets_.clear();
  for (std::size_t i = model_.parameters().size(); i-- > 0;) reducer.mark_ready(i);
  unused_.usage().end_iteration();
  const at::Tensor answer = unused_.ask();
  reducer.finalize();
  unused_.hear(answer);
  average_sparse_gradients();
  unused_.take_back_shadowed();
  WorkerProgress* const progress = model_.communicator().progress();
  if (progress != nullptr) progress->end_counted_step();
}

void DdpBackward::average_sparse_gradients() {
  const double factor = scale_ / model_.communicator().size();
  for (const NamedTensor& each : model_.sparse()) {
    average_sparse_gradient(each.tensor, each.name, factor, model_.communicator());
  }
}

}  // namespace ddprun::torch_adapter
