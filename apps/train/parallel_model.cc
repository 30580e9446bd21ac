// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/net.h"
#include "apps/train/trained_model.h"
#include "apps/train/training_state.h"
#include "common/check.h"
#include "common/error.h"
#include "common/text.h"
#include "worker_sdk/torch/parallel/average_gradients.h"
#include "worker_sdk/torch/parallel/parallel_linear.h"
#include "worker_sdk/torch/parallel/pipeline.h"
#include "worker_sdk/torch/tensor_collectives.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {
namespace {

// The masks tell which activations a step drops. They are drawn for the whole batch, as one process
// would draw them. So a training that is laid out over ranks drops the same activations. Factors
// are 0 if dropped, else 1 / (1 − p). Rows are samples.
struct DropoutMasks {
  at::Tensor features;  // N × 64 × 12 × 12, before the first linear layer
  at::Tensor hidden;    // N × 128, between the linear layers
};

at::Tensor draw(at::IntArrayRef shape, double dropped, const at::Generator& generator) {
  const double kept = 1 - dropped;
  return at::empty(shape, at::kFloat).bernoulli_(kept, generator).div_(kept);
}

// Returns the masks of samples first, first + stride, … of a batch of `num_samples`, on the CPU.
// They are the same as torch::dropout's, called once for each of the two after
// torch::manual_seed(seed).
DropoutMasks draw_dropout_masks(std::uint64_t seed, std::int64_t num_samples, std::int64_t first,
                                std::int64_t stride) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor features = draw({num_samples, 64, 12, 12}, kDroppedFeatures, generator);
  const at::Tensor hidden = draw({num_samples, 128}, kDroppedHidden, generator);
  if (stride == 1) return {features, hidden};
  const at::Tensor own = at::arange(first, num_samples, stride, at::kLong);
  return {features.index_select(0, own), hidden.index_select(0, own)};
}

DropoutMasks rows_of(const DropoutMasks& masks, std::int64_t first, std::int64_t count) {
  return {masks.features.narrow(0, first, count), masks.hidden.narrow(0, first, count)};
}

torch::nn::Conv2d copy_of(const torch::nn::Conv2d& whole) {
  const auto& size = whole->options;
  torch::nn::Conv2d layer(
      torch::nn::Conv2dOptions(size.in_channels(), size.out_channels(), size.kernel_size()));
  const c10::NoGradGuard no_grad;
  layer->weight.copy_(whole->weight);
  layer->bias.copy_(whole->bias);
  return layer;
}

// Returns which of `num_stages` has a layer, in the net's order: conv1 | conv2, pool | fc1 | fc2.
// With two stages one has the convolutions, the other the linear layers. Error(kInvalidArgument):
// more stages than layers.
int stage_of(const std::string& layer, int num_stages) {
  static const std::vector<std::string> names{"conv1", "conv2", "fc1", "fc2"};
  const int num_layers = static_cast<int>(names.size());
  if (num_stages > num_layers) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("--parallel: the net has ", num_layers, " layers, too few for ", num_stages,
                       " pipeline stages"));
  }
  const auto index = std::find(names.begin(), names.end(), layer) - names.begin();
  return static_cast<int>(index) * num_stages / num_layers;
}

// This rank's part of the net: some of its layers (a stage), and of the linear layers some of the
// features. Used by one thread.
struct ParallelNetImpl : torch::nn::Module {
  // Takes the part of `whole` that belongs to this rank; `mesh` outlives it.
  // Error(kInvalidArgument): more stages than layers, or features that the tensor ranks can't share
  // evenly.
  ParallelNetImpl(NetImpl& whole, Mesh& mesh) : tensor_ranks_(mesh.along(kTensorAxis)) {
    const int stage = mesh.coordinate(kPipelineAxis), num_stages = mesh.size_of(kPipelineAxis);
    const auto is_here = [&](const char* layer) { return stage_of(layer, num_stages) == stage; };
    if (is_here("conv1")) conv1 = register_module("conv1", copy_of(whole.conv1));
    if (is_here("conv2")) conv2 = register_module("conv2", copy_of(whole.conv2));
    if (is_here("fc1")) {
      const auto& size = whole.fc1->options;
      const ColumnParallelOptions its{
          .in_features = size.in_features(), .out_features = size.out_features(), .draw = false};
      fc1 = register_module("fc1", ColumnParallelLinear(its, tensor_ranks_));
      fc1->load_full(whole.fc1->weight, whole.fc1->bias);
    }
    if (is_here("fc2")) {
      const auto& size = whole.fc2->options;
      const RowParallelOptions its{
          .in_features = size.in_features(), .out_features = size.out_features(), .draw = false};
      fc2 = register_module("fc2", RowParallelLinear(its, tensor_ranks_));
      fc2->load_full(whole.fc2->weight, whole.fc2->bias);
    }
  }

  // Maps the output of the stage before to the input of the next one. The first stage takes N × 1 ×
  // 28 × 28 images, the last one gives N × 10 log-probabilities. `masks` has the rows of these N;
  // null: drops nothing. Collective over the tensor ranks.
  torch::Tensor forward(torch::Tensor x, const DropoutMasks* masks) {
    if (conv1) x = conv1(x).relu_();
    if (conv2) x = torch::max_pool2d(conv2(x), 2).relu_();
    if (fc1) {
      if (masks) x = x * masks->features;
      x = fc1(x.flatten(1)).relu_();
    }
    if (fc2) {
      if (masks)
        x = x * torch_adapter::own_part(masks->hidden, 1, tensor_ranks_, "hidden features");
      x = torch::log_softmax(fc2(x), 1);
    }
    return x;
  }

  // Null: the layer is in another stage.
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  ColumnParallelLinear fc1{nullptr};
  RowParallelLinear fc2{nullptr};

 private:
  Communicator& tensor_ranks_;
};

// A parameter of the whole net, and its place.
struct PlacedParameter {
  std::string name;  // "fc1.weight"
  std::vector<std::int64_t> shape;
  int stage = 0;
  // The dimension along which the tensor ranks of its stage share it; −1: each has all of it. On
  // other stages it is neither known nor needed.
  std::int64_t tensor_dim = -1;
};

// The kind of a checkpoint's tensor, given by the text around the parameter's name: "sgd." and
// ".momentum_buffer". Both empty: the parameter itself.
struct Kind {
  std::string before, after;
  bool has_shape = true;  // that of the parameter; false: it is one number
  at::ScalarType dtype = at::kFloat;

  std::string name_of(const PlacedParameter& parameter) const {
    return before + parameter.name + after;
  }
};

// Returns the kinds of the first parameter that has a part here; every stage has one.
std::vector<Kind> kinds_of(const std::vector<PlacedParameter>& parameters,
                           const std::vector<NamedTensor>& parts) {
  std::vector<Kind> kinds;
  for (const PlacedParameter& parameter : parameters) {
    for (const NamedTensor& part : parts) {
      const std::size_t at = part.name.find(parameter.name);
      if (at == part.name.npos) continue;
      kinds.push_back({.before = part.name.substr(0, at),
                       .after = part.name.substr(at + parameter.name.size()),
                       .has_shape = part.tensor.dim() > 0,
                       .dtype = part.tensor.scalar_type()});
    }
    if (!kinds.empty()) return kinds;
  }
  DDPRUN_CHECK(false);  // each stage has a layer, and each layer a parameter
  return kinds;
}

// Converts between this rank's parts of the net and a checkpoint. A checkpoint has whole tensors,
// by the names that they have on a rank with the whole net. So any layout can load what another one
// saved. Constant after construction. Used by one thread.
class WholeTensors {
 public:
  // `parameters` are the whole net's, in its order. `mesh` outlives this object.
  WholeTensors(std::vector<PlacedParameter> parameters, Mesh& mesh, c10::Device device)
      : parameters_(std::move(parameters)), mesh_(mesh), device_(device) {}

  // In all calls `parts` are this rank's: each of its parameters, and that parameter's optimiser
  // state ("sgd.fc1.weight.momentum_buffer"), of its shape or one number. Every rank has the same
  // kinds of state for each of its parameters.

  // Returns memory for all that a checkpoint has. Not collective.
  std::vector<NamedTensor> make(const std::vector<NamedTensor>& parts) const {
    std::vector<NamedTensor> whole;
    for (const Kind& kind : kinds_of(parameters_, parts)) {
      for (const PlacedParameter& parameter : parameters_) {
        const auto shape = kind.has_shape ? parameter.shape : std::vector<std::int64_t>{};
        const c10::Device device = kind.has_shape ? device_ : c10::Device(c10::kCPU);
        whole.push_back(
            {kind.name_of(parameter), at::zeros(shape, at::device(device).dtype(kind.dtype))});
      }
    }
    return whole;
  }

  // Copies this rank's part of each tensor into `parts`. Not collective.
  void scatter(const std::vector<NamedTensor>& whole, const std::vector<NamedTensor>& parts) const {
    const c10::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> by_name;
    for (const NamedTensor& each : whole) by_name[each.name] = each.tensor;
    for (const NamedTensor& part : parts) {
      for (const PlacedParameter& parameter : parameters_) {
        if (part.name.find(parameter.name) == part.name.npos) continue;
        at::Tensor target = part.tensor;
        target.copy_(own_part(by_name.at(part.name), parameter));
      }
    }
  }

  // Returns all that a checkpoint has, on every rank. Collective over all ranks of the mesh.
  std::vector<NamedTensor> gather(const std::vector<NamedTensor>& parts) const {
    const c10::NoGradGuard no_grad;
    Communicator& tensor_ranks = mesh_.along(kTensorAxis);
    std::map<std::string, at::Tensor> own;
    for (const NamedTensor& part : parts) own[part.name] = part.tensor;
    std::vector<NamedTensor> whole = make(parts);
    std::map<int, std::vector<at::Tensor>> by_stage;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const PlacedParameter& parameter = parameters_[i % parameters_.size()];
      const auto part = own.find(whole[i].name);  // not found: it is another stage's
      if (part != own.end()) {
        const bool is_shared = whole[i].tensor.dim() > 0 && parameter.tensor_dim >= 0;
        whole[i].tensor.copy_(
            is_shared && tensor_ranks.size() > 1
                ? torch_adapter::gather(part->second, parameter.tensor_dim, tensor_ranks)
                : part->second);
      }
      by_stage[parameter.stage].push_back(whole[i].tensor);
    }
    Communicator& stages = mesh_.along(kPipelineAxis);
    if (stages.size() == 1) return whole;
    for (auto& [stage, tensors] : by_stage) {
      torch_adapter::broadcast_tensors(tensors, stage, stages, device_);
    }
    return whole;
  }

 private:
  at::Tensor own_part(const at::Tensor& whole, const PlacedParameter& parameter) const {
    if (whole.dim() == 0 || parameter.tensor_dim < 0) return whole;
    return torch_adapter::own_part(whole, parameter.tensor_dim, mesh_.along(kTensorAxis),
                                   parameter.name.c_str());
  }

  const std::vector<PlacedParameter> parameters_;
  Mesh& mesh_;
  const c10::Device device_;
};

// With twice as many parts as stages, the stages wait for a third of the time or less.
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

// The pipeline calls forward() for each part of a batch, in order. This class counts rows to find
// each part's dropout masks.
class StageOfBatch {
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

class ParallelModel : public TrainedModel {
 public:
  ParallelModel(const Options& options, Mesh& mesh, c10::Device device,
                std::uint64_t steps_per_epoch)
      : ParallelModel(options, mesh, device, steps_per_epoch,
                      *std::make_unique<NetImpl>(draw_whole_net(options.seed))) {}

  void begin_training() override { part_->train(); }
  void begin_step(std::uint64_t step) override { step_ = step; }

  at::Tensor backward(const at::Tensor& pixels, const at::Tensor& labels,
                      const std::vector<MicroBatch>& parts) override {
    const DropoutMasks masks = masks_for(labels.size(0));
    return pipeline_ ? backward_of_stage(pixels, labels, masks)
                     : backward_of_whole_net(pixels, labels, parts, masks);
  }

  at::Tensor evaluate(const at::Tensor& pixels) override {
    const torch::NoGradGuard no_grad;
    part_->eval();
    if (!pipeline_) return part_->forward(pixels, nullptr);
    stage_.begin(nullptr);
    constexpr std::int64_t kNumDigits = 10;
    at::Tensor output = pipeline_->evaluate(pixels);
    if (!output.defined()) output = at::empty({pixels.size(0), kNumDigits}, pixels.options());
    torch_adapter::broadcast_tensors({output}, pipeline_->num_stages() - 1,
                                     mesh_.along(kPipelineAxis), device_);
    return output;
  }

  DdpBase& ddp() override { return *ddp_; }
  Optimization& optimization() override { return *optimization_; }

  std::vector<NamedTensor> tensors_to_load() override { return whole_.make(own_parts()); }
  void loaded(const std::vector<NamedTensor>& tensors) override {
    whole_.scatter(tensors, own_parts());
  }
  std::vector<NamedTensor> tensors_to_save() override { return whole_.gather(own_parts()); }
  // Another layout has other buckets, so their order isn't kept.
  std::vector<std::string> gradient_order() override { return {}; }
  void set_gradient_order(const std::vector<std::string>&) override {}
  const OwnTensors& own_tensors() const override { return own_; }
  bool is_finite() const override {
    return are_finite(part_->parameters(), mesh_.world(), device_);
  }

 private:
  // `whole` is the net that all ranks have together; it is used during this call only.
  ParallelModel(const Options& options, Mesh& mesh, c10::Device device,
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
        stage_(*part_) {
    const int num_stages = mesh.size_of(kPipelineAxis);
    if (num_stages == 1) return;
    const int num_parts =
        options.num_micro_batches > 0 ? options.num_micro_batches : kPartsPerStage * num_stages;
    pipeline_ = std::make_unique<Pipeline>(
        [this](const at::Tensor& input) { return stage_.forward(input); },
        mesh.along(kPipelineAxis),
        PipelineOptions{
            .kind = options.pipeline, .num_micro_batches = num_parts, .broadcast_loss = true});
  }

  // Returns masks for this rank's images, which are every n-th of the batch with n data ranks.
  DropoutMasks masks_for(std::int64_t num_images) const {
    const int num_data_ranks = mesh_.size_of(kDataAxis);
    const DropoutMasks masks =
        draw_dropout_masks(step_seed(seed_, 0, step_), num_images * num_data_ranks,
                           mesh_.coordinate(kDataAxis), num_data_ranks);
    return {masks.features.to(device_), masks.hidden.to(device_)};
  }

  at::Tensor backward_of_whole_net(const at::Tensor& pixels, const at::Tensor& labels,
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

  at::Tensor backward_of_stage(const at::Tensor& pixels, const at::Tensor& labels,
                               const DropoutMasks& masks) {
    const DdpBase::NoSync local(*ddp_);  // forwards and backwards take turns: averaged below
    ddp_->before_forward();
    stage_.begin(&masks);
    const auto loss_of = [&](const at::Tensor& output, const MicroBatch& part) {
      return torch::nll_loss(output, labels.narrow(0, part.first, part.count));
    };
    const at::Tensor loss = pipeline_->train_step(pixels, loss_of);
    average_gradients(part_->parameters(), mesh_.along(kDataAxis));
    return loss;
  }

  std::vector<NamedTensor> own_parts() {
    std::vector<NamedTensor> parts = optimization_->named_tensors();
    for (const auto& item : part_->named_parameters()) parts.push_back({item.key(), item.value()});
    return parts;
  }

  // Constant after construction.
  const std::uint64_t seed_;
  Mesh& mesh_;
  const c10::Device device_;
  const OwnTensors own_;
  const std::shared_ptr<ParallelNetImpl> part_;  // LibTorch's modules need a shared_ptr
  const WholeTensors whole_;
  const std::unique_ptr<DistributedDataParallel<ParallelNetImpl>> ddp_;
  const std::unique_ptr<Optimization> optimization_;
  StageOfBatch stage_;
  std::unique_ptr<Pipeline> pipeline_;  // null: one stage

  std::uint64_t step_ = 0;
};

}  // namespace

std::unique_ptr<TrainedModel> make_parallel_model(const Options& options, Mesh& mesh,
                                                  c10::Device device,
                                                  std::uint64_t steps_per_epoch) {
  return std::make_unique<ParallelModel>(options, mesh, device, steps_per_epoch);
}

}  // namespace ddprun::train
