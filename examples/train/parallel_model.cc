// SPDX-License-Identifier: Apache-2.0
#include "examples/train/parallel_model.h"

#include <torch/torch.h>

#include <map>
#include <string>
#include <utility>

#include "examples/train/dropout_masks.h"
#include "examples/train/parallel_net.h"
#include "examples/train/training_state.h"
#include "worker_sdk/torch/parallel/average_gradients.h"
#include "worker_sdk/torch/parallel/pipeline.h"
#include "worker_sdk/torch/parallel/sharded_layer.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {
namespace {

// Twice as many parts as stages: the stages then wait for a third of the time or less.
constexpr int kPartsPerStage = 2;

NetImpl draw_whole_net(std::uint64_t seed) {
  torch::manual_seed(seed);
  return NetImpl();
}

std::shared_ptr<ParallelNetImpl> make_part(NetImpl& whole, Mesh& mesh, c10::Device device) {
  auto part = std::make_shared<ParallelNetImpl>(whole, mesh);
  part->to(device);
  return part;
}

WholeTensors whole_tensors(const NetImpl& whole, const ParallelNetImpl& part, Mesh& mesh,
                           c10::Device device) {
  std::map<std::string, std::int64_t> shared_dims;
  for (const ShardedParameter& each : sharded_parameters(part)) shared_dims[each.name] = each.dim;
  std::vector<PlacedParameter> parameters;
  for (const auto& item : whole.named_parameters()) {
    const std::string layer = item.key().substr(0, item.key().find('.'));
    const auto shared = shared_dims.find(item.key());
    parameters.push_back({.name = item.key(),
                          .shape = item.value().sizes().vec(),
                          .stage = stage_of(layer, mesh.size_of(kPipelineAxis)),
                          .tensor_dim = shared == shared_dims.end() ? -1 : shared->second});
  }
  return {std::move(parameters), mesh, device};
}

DropoutMasks rows_of(const DropoutMasks& masks, std::int64_t first, std::int64_t count) {
  return {masks.features.narrow(0, first, count), masks.hidden.narrow(0, first, count)};
}

}  // namespace

// What the pipeline calls for each part of a batch, in order: rows are counted along.
class ParallelModel::StageOfBatch {
 public:
  explicit StageOfBatch(ParallelNetImpl& part) : part_(part) {}

  void begin(const DropoutMasks* masks) {
    masks_ = masks;
    row_ = 0;
  }

  at::Tensor forward(const at::Tensor& input) {
    if (!masks_) return part_.forward(input, nullptr);
    const DropoutMasks own = rows_of(*masks_, row_, input.size(0));
    row_ += input.size(0);
    return part_.forward(input, &own);
  }

 private:
  ParallelNetImpl& part_;
  const DropoutMasks* masks_ = nullptr;  // null: drops nothing
  std::int64_t row_ = 0;
};

ParallelModel::ParallelModel(const Options& options, Mesh& mesh, c10::Device device,
                             std::uint64_t steps_per_epoch)
    : ParallelModel(options, mesh, device, steps_per_epoch,
                    *std::make_unique<NetImpl>(draw_whole_net(options.seed))) {}

ParallelModel::ParallelModel(const Options& options, Mesh& mesh, c10::Device device,
                             std::uint64_t steps_per_epoch, NetImpl& whole)
    : seed_(options.seed),
      mesh_(mesh),
      device_(device),
      own_(options, {}),
      part_(make_part(whole, mesh, device)),
      whole_(whole_tensors(whole, *part_, mesh, device)),
      ddp_(std::make_unique<DistributedDataParallel<ParallelNetImpl>>(*part_,
                                                                      mesh.along(kDataAxis))),
      optimization_(std::make_unique<Optimization>(options, *part_, *ddp_, mesh.along(kDataAxis),
                                                   device, steps_per_epoch)),
      stage_(std::make_unique<StageOfBatch>(*part_)) {
  const int num_stages = mesh.size_of(kPipelineAxis);
  if (num_stages == 1) return;
  const int num_parts =
      options.num_micro_batches > 0 ? options.num_micro_batches : kPartsPerStage * num_stages;
  pipeline_ = std::make_unique<Pipeline>(
      [this](const at::Tensor& input) { return stage_->forward(input); }, mesh.along(kPipelineAxis),
      PipelineOptions{
          .kind = options.pipeline, .num_micro_batches = num_parts, .broadcast_loss = true});
}

ParallelModel::~ParallelModel() = default;

DdpBase& ParallelModel::ddp() { return *ddp_; }

void ParallelModel::begin_training() { part_->train(); }

// Of this rank's images, which are every so-manyth of the batch.
DropoutMasks ParallelModel::masks_for(std::int64_t num_images) const {
  const int num_data_ranks = mesh_.size_of(kDataAxis);
  const DropoutMasks masks =
      draw_dropout_masks(step_seed(seed_, 0, step_), num_images * num_data_ranks,
                         mesh_.coordinate(kDataAxis), num_data_ranks);
  return {masks.features.to(device_), masks.hidden.to(device_)};
}

at::Tensor ParallelModel::backward(const at::Tensor& pixels, const at::Tensor& labels,
                                   const std::vector<MicroBatch>& parts) {
  const DropoutMasks masks = masks_for(labels.size(0));
  return pipeline_ ? backward_of_stage(pixels, labels, masks)
                   : backward_of_whole_net(pixels, labels, parts, masks);
}

at::Tensor ParallelModel::backward_of_whole_net(const at::Tensor& pixels, const at::Tensor& labels,
                                                const std::vector<MicroBatch>& parts,
                                                const DropoutMasks& masks) {
  at::Tensor sum;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t first = parts[i].first, count = parts[i].count;
    std::optional<DdpBase::NoSync> local;
    if (i + 1 < parts.size()) local.emplace(*ddp_);
    const DropoutMasks own = rows_of(masks, first, count);
    const at::Tensor output = (*ddp_)(pixels.narrow(0, first, count), &own);
    const at::Tensor loss =
        torch::nll_loss(output, labels.narrow(0, first, count)) * parts[i].weight;
    loss.backward();
    sum = sum.defined() ? sum + loss.detach() : loss.detach();
  }
  return sum;
}

at::Tensor ParallelModel::backward_of_stage(const at::Tensor& pixels, const at::Tensor& labels,
                                            const DropoutMasks& masks) {
  const DdpBase::NoSync local(*ddp_);  // forwards and backwards take turns: averaged below
  ddp_->before_forward();
  stage_->begin(&masks);
  const auto loss_of = [&](const at::Tensor& output, const MicroBatch& part) {
    return torch::nll_loss(output, labels.narrow(0, part.first, part.count));
  };
  const at::Tensor loss = pipeline_->train_step(pixels, loss_of);
  average_gradients(part_->parameters(), mesh_.along(kDataAxis));
  return loss;
}

at::Tensor ParallelModel::evaluate(const at::Tensor& pixels) {
  const torch::NoGradGuard no_grad;
  part_->eval();
  if (!pipeline_) return part_->forward(pixels, nullptr);
  stage_->begin(nullptr);
  constexpr std::int64_t kNumDigits = 10;
  at::Tensor output = pipeline_->evaluate(pixels);
  if (!output.defined()) output = at::empty({pixels.size(0), kNumDigits}, pixels.options());
  torch_adapter::broadcast_tensors({output}, pipeline_->num_stages() - 1,
                                   mesh_.along(kPipelineAxis), device_);
  return output;
}

std::vector<NamedTensor> ParallelModel::own_parts() {
  std::vector<NamedTensor> parts = optimization_->named_tensors();
  for (const auto& item : part_->named_parameters()) parts.push_back({item.key(), item.value()});
  return parts;
}

std::vector<NamedTensor> ParallelModel::tensors_to_load() { return whole_.make(own_parts()); }

void ParallelModel::loaded(const std::vector<NamedTensor>& tensors) {
  whole_.scatter(tensors, own_parts());
}

std::vector<NamedTensor> ParallelModel::tensors_to_save() { return whole_.gather(own_parts()); }

bool ParallelModel::is_finite() const {
  return are_finite(part_->parameters(), mesh_.world(), device_);
}

}  // namespace ddprun::train
