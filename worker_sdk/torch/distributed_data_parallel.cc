// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/distributed_data_parallel.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/core/worker_progress.h"
#include "worker_sdk/ddp/model_difference.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;
namespace autograd = torch::autograd;

namespace {

std::string describe(const at::Tensor& tensor) {
  std::string text = concat(c10::toString(tensor.scalar_type()), " ", tensor.sizes());
  if (!tensor.is_contiguous()) text += concat(" with strides ", tensor.strides());
  if (!tensor.requires_grad()) text += ", no gradient";
  return text;
}

// The same error on every rank, naming the first rank that differs from rank 0.
void check_same_model(const torch::nn::Module& module, Communicator& communicator,
                      c10::Device device) {
  if (communicator.size() == 1) return;
  std::vector<ModelEntry> entries;
  for (const auto& item : module.named_parameters()) {
    entries.push_back({"parameter " + item.key(), describe(item.value())});
  }
  for (const auto& item : module.named_buffers()) {
    entries.push_back({"buffer " + item.key(), describe(item.value())});
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

class DdpBase::Impl {
 public:
  Impl(torch::nn::Module& module, Communicator& communicator, const DdpOptions& options);
  ~Impl();

  void before_forward();
  void zero_grad();

  int no_sync_depth_ = 0;
  Reducer& reducer() { return *reducer_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  std::vector<ParameterSpec> trainable_parameters(torch::nn::Module& module);
  void make_slots();
  void install_hook(std::size_t index);
  void on_gradient(std::size_t index);
  void form_final_buckets();

  // Constant after construction.
  Communicator& communicator_;
  const DdpOptions options_;
  std::vector<at::Tensor> parameters_;  // those that require a gradient; the reducer's indices
  std::vector<std::string> names_;
  std::vector<at::Tensor> buffers_;
  c10::Device device_ = c10::kCPU;
  std::optional<Reducer> reducer_;
  using Accumulator = decltype(autograd::impl::grad_accumulator(std::declval<at::Tensor>()));
  struct Hook {
    Accumulator accumulator;  // second owner: the graph; kept, or the hook would go with the graph
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;

  std::vector<at::Tensor> slots_;  // each gradient's place in its bucket; changed by the rebuild
  bool averages_ = true;           // the coming backward does
  bool sends_buffers_ = true;      // the coming forward does
  bool final_callback_queued_ = false;
};

DdpBase::Impl::Impl(torch::nn::Module& module, Communicator& communicator,
                    const DdpOptions& options)
    : communicator_(communicator), options_(options) {
  std::vector<at::Tensor> state = module.parameters();
  buffers_ = module.buffers();
  state.insert(state.end(), buffers_.begin(), buffers_.end());
  if (!state.empty()) device_ = state.front().device();
  check_same_model(module, communicator_, device_);
  broadcast_tensors(state, 0, communicator_);
  reducer_.emplace(communicator_, trainable_parameters(module), options_.buckets);
  if (options_.comm_hook) reducer_->set_hook(options_.comm_hook);
  make_slots();
  for (std::size_t index = 0; index < parameters_.size(); ++index) install_hook(index);
}

DdpBase::Impl::~Impl() {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
  // Gradients lie in the communicator's memory, which goes now.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (gradient.is_same(slots_[i])) gradient = at::Tensor();
  }
}

std::vector<ParameterSpec> DdpBase::Impl::trainable_parameters(torch::nn::Module& module) {
  std::vector<ParameterSpec> specs;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad()) continue;
    // One that several modules share is listed under each name; it has one gradient.
    const auto same = [&](const at::Tensor& known) { return known.is_same(parameter); };
    if (std::any_of(parameters_.begin(), parameters_.end(), same)) continue;
    ParameterSpec spec;
    spec.name = item.key();
    spec.count = static_cast<std::size_t>(parameter.numel());
    spec.dtype = dtype_of(parameter, "parameter " + item.key());
    spec.device = comm_device_of(parameter);
    spec.shape = parameter.sizes().vec();
    specs.push_back(std::move(spec));
    parameters_.push_back(parameter);
    names_.push_back(item.key());
  }
  return specs;
}

void DdpBase::Impl::make_slots() {
  // Not views of a bucket tensor but tensors of their own over its memory: autograd refuses to
  // detach a view in place, which Optimizer::zero_grad(false) does.
  for (std::size_t b = 0; b < reducer_->num_buckets(); ++b) {
    const TensorView bucket = reducer_->bucket(b);
    const auto bytes = static_cast<std::int64_t>(bucket.size_bytes());
    const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
    at::from_blob(bucket.data, {bytes}, options).zero_();
  }
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

void DdpBase::Impl::install_hook(std::size_t index) {
  auto accumulator = autograd::impl::grad_accumulator(parameters_[index]);
  auto hook = [this, index](const autograd::variable_list& outputs,
                            const autograd::variable_list&) {
    on_gradient(index);
    return outputs;
  };
  const std::uintptr_t key = accumulator->add_post_hook(
      std::make_unique<autograd::utils::LambdaPostHook>(std::move(hook)));
  hooks_.push_back({std::move(accumulator), key});
}

void DdpBase::Impl::on_gradient(std::size_t index) {
  if (!averages_) return;
  at::Tensor& gradient = parameters_[index].mutable_grad();
  if (gradient.layout() != c10::kStrided) {
    throw Error(ErrorCode::kUnsupported,
                concat("the gradient of ", names_[index],
                       " is sparse: use a dense one (sparse(false) in embedding options)"));
  }
  if (!gradient.is_same(slots_[index])) {
    const c10::NoGradGuard no_grad;
    slots_[index].copy_(gradient);
    gradient = slots_[index];
  }
  if (!final_callback_queued_) {
    final_callback_queued_ = true;
    autograd::Engine::get_default_engine().queue_callback([this] {
      final_callback_queued_ = false;
      reducer_->finalize();
      if (communicator_.progress()) communicator_.progress()->end_counted_step();
    });
  }
  reducer_->mark_ready(index);
}

void DdpBase::Impl::before_forward() {
  const bool with_gradients = c10::GradMode::is_enabled();
  if (with_gradients) {
    averages_ = no_sync_depth_ == 0;
    if (averages_ && communicator_.progress()) communicator_.progress()->count_step();
    final_callback_queued_ = false;  // left over where the last backward threw
    if (averages_ && reducer_->wants_rebuild()) form_final_buckets();
  }
  if (options_.broadcast_buffers && sends_buffers_) broadcast_tensors(buffers_, 0, communicator_);
  // As PyTorch: after a local step buffers may differ until the next averaged one has run.
  sends_buffers_ = with_gradients && averages_;
}

void DdpBase::Impl::form_final_buckets() {
  const std::vector<std::size_t>& mine = reducer_->first_arrival();
  std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof mine[0]);
  broadcast_bytes(bytes, 0, communicator_, device_);
  std::vector<std::size_t> arrival(mine.size());
  std::memcpy(arrival.data(), bytes.data(), bytes.size());

  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> kept(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].mutable_grad().is_same(slots_[i])) kept[i] = slots_[i].clone();
  }
  reducer_->rebuild(arrival);
  make_slots();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!kept[i].defined()) continue;
    slots_[i].copy_(kept[i]);
    parameters_[i].mutable_grad() = slots_[i];
  }
}

void DdpBase::Impl::zero_grad() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

DdpBase::DdpBase(torch::nn::Module& module, Communicator& communicator, const DdpOptions& options)
    : impl_(std::make_unique<Impl>(module, communicator, options)) {}
DdpBase::~DdpBase() = default;

void DdpBase::zero_grad() { impl_->zero_grad(); }
void DdpBase::before_forward() { impl_->before_forward(); }
void DdpBase::register_comm_hook(std::shared_ptr<CommHook> hook) {
  impl_->reducer().set_hook(std::move(hook));
}
const GradientTraffic& DdpBase::traffic() const { return impl_->reducer().traffic(); }
const IterationTrace& DdpBase::trace() const { return impl_->reducer().trace(); }
const BucketPlan& DdpBase::bucket_plan() const { return impl_->reducer().plan(); }
const std::vector<at::Tensor>& DdpBase::parameters() const { return impl_->parameters(); }

std::vector<TensorView> DdpBase::gradient_buckets() const {
  std::vector<TensorView> buckets;
  for (std::size_t b = 0; b < impl_->reducer().num_buckets(); ++b) {
    buckets.push_back(impl_->reducer().bucket(b));
  }
  return buckets;
}

DdpBase::NoSync::NoSync(DdpBase& ddp) : ddp_(ddp) { ++ddp_.impl_->no_sync_depth_; }
DdpBase::NoSync::~NoSync() { --ddp_.impl_->no_sync_depth_; }

}  // namespace ddprun
