// SPDX-License-Identifier: Apache-2.0
#include "apps/train/model.h"

#include <torch/torch.h>

#include <cmath>
#include <mutex>
#include <optional>

#include "apps/train/net.h"
#include "apps/train/training_state.h"
#include "worker_sdk/torch/cast_hook.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/hook_state.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {
namespace {

std::shared_ptr<NetImpl> make_net(const Options& options, c10::Device device) {
  // Weights come from LibTorch's one generator, so threads (--mode=dp) draw one after the other.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(options.seed);
  auto net = std::make_shared<NetImpl>(options.batch_norm);
  net->float32_convolutions = options.amp == AmpChoice::kFp16 && device.is_cpu();
  net->to(device);
  return net;
}

// Restarts the default generator of `device` (dropout) from `seed`.
void seed_generator(c10::Device device, std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

DdpOptions ddp_options(const Options& options, std::shared_ptr<CommHook> hook) {
  return {.broadcast_buffers = options.broadcast_buffers,
          .comm_hook = std::move(hook),
          .find_unused_parameters = options.find_unused_parameters,
          .static_graph = options.static_graph,
          .ignored = options.ignore_parameters,
          .zero = options.zero};
}

}  // namespace

Model::Model(const Options& options, Communicator& communicator, c10::Device device,
             std::uint64_t steps_per_epoch)
    : communicator_(communicator),
      seed_(options.seed),
      device_(device),
      net_(make_net(options, device)),
      own_(options, net_->named_buffers().keys()),
      hook_(make_comm_hook(options.compression, device)),
      ddp_(std::make_unique<DistributedDataParallel<NetImpl>>(*net_, communicator,
                                                              ddp_options(options, hook_))),
      optimization_(std::make_unique<Optimization>(options, *net_, *ddp_, communicator, device,
                                                   steps_per_epoch)) {}

Model::~Model() = default;

DdpBase& Model::ddp() { return *ddp_; }

void Model::begin_training() { net_->train(); }

void Model::begin_step(std::uint64_t step) {
  const std::uint64_t seed = step_seed(seed_, communicator_.rank(), step);
  device_.is_cpu() ? net_->generator.set_current_seed(seed) : seed_generator(device_, seed);
}

at::Tensor Model::evaluate(const at::Tensor& pixels) {
  const torch::NoGradGuard no_grad;
  net_->eval();
  return net_->forward(pixels);
}

at::Tensor Model::backward(const at::Tensor& pixels, const at::Tensor& labels,
                           const std::vector<MicroBatch>& parts) {
  at::Tensor sum;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::optional<DdpBase::NoSync> local;
    if (alone_ || i + 1 < parts.size()) local.emplace(*ddp_);
    at::Tensor loss;
    {
      const Autocast mixed = optimization_->autocast();
      loss = torch::nll_loss((*ddp_)(pixels.narrow(0, parts[i].first, parts[i].count)),
                             labels.narrow(0, parts[i].first, parts[i].count));
    }
    if (parts.size() > 1) loss = loss * parts[i].weight;
    optimization_->scaled(loss).backward();
    sum = sum.defined() ? sum + loss.detach() : loss.detach();
  }
  return sum;
}

std::vector<NamedTensor> Model::tensors_without_hook() {
  std::vector<NamedTensor> tensors = optimization_->named_tensors();
  for (const auto& item : net_->named_parameters()) tensors.push_back({item.key(), item.value()});
  for (const auto& item : net_->named_buffers()) tensors.push_back({item.key(), item.value()});
  return tensors;
}

std::vector<NamedTensor> Model::parameters() { return trainable_parameters(*net_); }

std::vector<NamedTensor> Model::rest_of_state() {
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& each : optimization_->named_tensors()) {
    // The number of updates is left out: it is the same on all ranks. It lies on the CPU, and its
    // mean may be no whole number.
    if (each.name.ends_with(".step")) continue;
    if (each.tensor.is_floating_point()) tensors.push_back(each);
  }
  for (const auto& item : net_->named_buffers()) {
    if (item.value().is_floating_point()) tensors.push_back({item.key(), item.value()});
  }
  return tensors;
}

std::vector<NamedTensor> Model::tensors_to_load() {
  std::vector<NamedTensor> tensors = tensors_without_hook();
  if (!hook_) return tensors;
  for (NamedTensor& each : hook_tensors(*hook_)) tensors.push_back(std::move(each));
  return tensors;
}

void Model::loaded(const std::vector<NamedTensor>& tensors) { optimization_->loaded(tensors); }

std::vector<NamedTensor> Model::tensors_to_save() {
  std::vector<NamedTensor> tensors = tensors_without_hook();
  if (!hook_) return tensors;
  for (NamedTensor& each : hook_tensors_to_save(*hook_, communicator_)) {
    tensors.push_back(std::move(each));
  }
  return tensors;
}

bool Model::is_finite() const { return are_finite(net_->parameters(), communicator_, device_); }

void TrainedModel::broadcast_optimizer(int root, Communicator& ranks, c10::Device device) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : optimization().named_tensors()) {
    if (!own_tensors().has(each.name)) tensors.push_back(each.tensor);
  }
  torch_adapter::broadcast_tensors(tensors, root, ranks, device);
}

bool are_finite(const std::vector<at::Tensor>& tensors, Communicator& ranks, c10::Device device) {
  const c10::NoGradGuard no_grad;
  at::Tensor sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device));
  for (const at::Tensor& each : tensors) sum += each.sum(at::kDouble);
  std::vector<std::uint8_t> finite{std::isfinite(sum.item<double>())};
  torch_adapter::reduce_bytes(finite, ReduceOp::kMin, ranks, device);
  return finite.front() == 1;
}

std::unique_ptr<TrainedModel> make_model(const Options& options, const Place& place,
                                         c10::Device device, std::uint64_t steps_per_epoch) {
  if (place.mesh) return make_parallel_model(options, *place.mesh, device, steps_per_epoch);
  return std::make_unique<Model>(options, place.communicator, device, steps_per_epoch);
}

}  // namespace ddprun::train
