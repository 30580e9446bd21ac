// SPDX-License-Identifier: Apache-2.0
#include "examples/train/trainer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "examples/train/images.h"
#include "examples/train/micro_batches.h"
#include "examples/train/net.h"
#include "examples/train/optimization.h"
#include "examples/train/training_checkpoint.h"
#include "examples/train/training_state.h"
#include "worker_sdk/ddp/distributed_sampler.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/hook_state.h"
#include "worker_sdk/torch/pinned_loader.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {
namespace {

constexpr std::int64_t kTestBatch = 256;
constexpr std::chrono::seconds kLossInterval{1};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sums over samples; added up over all ranks before they are reported.
struct Totals {
  torch::Tensor values;  // loss, correct, samples
  explicit Totals(torch::Device device)
      : values(torch::zeros({3}, torch::TensorOptions().dtype(torch::kDouble).device(device))) {}
  double loss_sum() const { return values[0].item<double>(); }
  double loss() const { return loss_sum() / samples(); }
  double accuracy() const { return values[1].item<double>() / samples(); }
  double samples() const { return values[2].item<double>(); }
};

class Trainer {
 public:
  Trainer(const Options& options, const DataSet& data, const Place& place, torch::Device device,
          Progress& progress);

  // Goes on from the newest checkpoint where there is one.
  void resume(const DataSet& data);

  // One more epoch, or the rest of the one under way. False: asked to leave before it was done.
  bool run_epoch();

  // What was saved is on disk when it returns. Collective.
  void finish_saving();

  const TrainingState& state() const { return state_; }
  const GradientTraffic& traffic() const { return ddp_.traffic(); }
  StepStatistics statistics() const { return ddp_.statistics(); }
  double median_step_ms();
  // That the training waited for its batches.
  double loading_seconds() const { return std::chrono::duration<double>(loader_.waited()).count(); }

 private:
  // Of the epoch under way, in this process alone.
  struct Share {
    Totals totals;
    Clock::time_point start;
    std::int64_t first, done;  // of this rank's samples
  };

  bool train(Share& share);
  void train_step(Share& share, ProgressState& shown);
  torch::Tensor backward(const PinnedLoader::Batch& batch, std::int64_t done);
  void shadow_others(DdpBase::Join& join);
  std::uint64_t steps_per_epoch() const;
  void check_finite() const;
  void evaluate(Totals& totals);
  void sum_over_ranks(Totals& totals);
  bool asked_to_leave();
  void save_within(const Share& share);
  void save();
  void set_phase(ProgressPhase phase);
  void report(double loss, std::int64_t num_samples);
  std::vector<NamedTensor> named_tensors(bool to_save);

  const Options& options_;
  Communicator& communicator_;
  Session* const session_;  // null: no launcher
  Progress& progress_;
  const std::int64_t batch_size_;  // of this rank
  const torch::Device device_;
  const Images train_images_, test_images_;
  const DistributedSampler sampler_;
  const std::int64_t common_samples_;  // of an epoch, that each rank has
  PinnedLoader loader_;
  Net net_;
  const std::shared_ptr<CommHook> hook_;  // null: --compress=none
  DistributedDataParallel<NetImpl> ddp_;
  Optimization optimization_;
  std::unique_ptr<TrainingCheckpoint> checkpoint_;  // null: --checkpoint-dir isn't given
  TrainingState state_;
  std::vector<double> step_ms_;
  double last_loss_ = 0;  // that was computed
  Clock::time_point loss_due_{};
};

// Images and labels of a batch. Threads of the loader make it on the CPU, the training's own thread
// where the images are.
PinnedLoader make_loader(const Options& options, const Place& place, torch::Device device,
                         const Images& images, const DistributedSampler& sampler,
                         std::int64_t batch_size) {
  LoaderOptions loading{.batch_size = batch_size, .num_threads = options.loader_threads};
  if (place.session) loading.progress = &place.session->progress();
  const auto load = [&images, delay = std::chrono::milliseconds(options.loader_delay_ms)](
                        const std::vector<std::int64_t>& indices) {
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    const torch::NoGradGuard no_grad;
    const torch::Tensor batch = torch::tensor(indices, torch::kLong).to(images.device());
    return PinnedLoader::Batch{images.pixels(batch), images.labels(batch)};
  };
  return {sampler, loading, load, images.device().is_cpu() ? device : torch::Device(torch::kCPU)};
}

// Weights are a function of the seed, the same on all ranks.
Net make_net(const Options& options, torch::Device device) {
  torch::manual_seed(options.seed);
  Net net;
  net->float32_convolutions = options.amp == AmpChoice::kFp16 && device.is_cpu();
  net->to(device);
  return net;
}

DdpOptions ddp_options(const Options& options, std::shared_ptr<CommHook> hook) {
  return {.comm_hook = std::move(hook),
          .find_unused_parameters = options.find_unused_parameters,
          .static_graph = options.static_graph};
}

SamplerOptions sampler_options(const Options& options) {
  return {.shuffle = true,
          .seed = options.seed,
          .drop_last = options.uneven_inputs == UnevenInputs::kDrop,
          .uneven = options.uneven_inputs == UnevenInputs::kJoin};
}

Trainer::Trainer(const Options& options, const DataSet& data, const Place& place,
                 torch::Device device, Progress& progress)
    : options_(options),
      communicator_(place.communicator),
      session_(place.session),
      progress_(progress),
      batch_size_((options.batch_size + communicator_.size() - 1) / communicator_.size()),
      device_(device),
      train_images_(data.train, options.loader_threads > 0 ? torch::Device(torch::kCPU) : device),
      test_images_(data.test, device),
      sampler_(train_images_.count(), communicator_.size(), communicator_.rank(),
               sampler_options(options)),
      common_samples_(options.uneven_inputs == UnevenInputs::kJoin
                          ? train_images_.count() / communicator_.size()
                          : sampler_.size()),
      loader_(make_loader(options, place, device, train_images_, sampler_, batch_size_)),
      net_(make_net(options, device)),
      hook_(make_comm_hook(options.compression)),
      ddp_(*net_, communicator_, ddp_options(options, hook_)),
      optimization_(options, *net_, ddp_, communicator_, device, steps_per_epoch()) {
  if (common_samples_ > 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat("--uneven-inputs ", to_string(options.uneven_inputs), ": ",
                     train_images_.count(), " images are too few for ", communicator_.size(),
                     " ranks: use fewer, or --uneven-inputs pad"));
}

void Trainer::resume(const DataSet& data) {
  if (options_.checkpoint_dir.empty()) return;
  state_.run = identity_of(options_, data);
  checkpoint_ = std::make_unique<TrainingCheckpoint>(options_, communicator_, device_);
  const auto saved = checkpoint_->load(state_.run, named_tensors(false));
  if (!saved) {
    return progress_.line("train: no checkpoint in " + options_.checkpoint_dir + ": begins anew");
  }
  state_ = *saved;
  const std::size_t epoch = state_.epochs.size() + 1;
  progress_.line(
      epoch > static_cast<std::size_t>(options_.num_epochs)
          ? concat("train: ", epoch - 1, " epochs are trained already: ", checkpoint_->path())
          : concat("train: goes on from step ", state_.step + 1, ", epoch ", epoch, "/",
                   options_.num_epochs, ": ", checkpoint_->path()));
}

// Collective.
std::vector<NamedTensor> Trainer::named_tensors(bool to_save) {
  std::vector<NamedTensor> tensors = optimization_.named_tensors();
  for (const auto& item : net_->named_parameters()) tensors.push_back({item.key(), item.value()});
  for (const auto& item : net_->named_buffers()) tensors.push_back({item.key(), item.value()});
  if (!hook_) return tensors;
  for (NamedTensor& tensor :
       to_save ? hook_tensors_to_save(*hook_, communicator_) : hook_tensors(*hook_)) {
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void Trainer::set_phase(ProgressPhase phase) {
  if (!session_) return;
  session_->progress().end_step();
  session_->progress().set_phase(phase);
}

void Trainer::report(double loss, std::int64_t num_samples) {
  if (session_) session_->progress().report(loss, static_cast<std::uint64_t>(num_samples));
}

// Begins the next step where not.
bool Trainer::asked_to_leave() {
  if (!session_) return false;
  return session_->should_stop(state_.step + 1, [this] {
    if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
  });
}

// On all ranks alike, as the parameters are. Before a save: it would push good ones out.
void Trainer::check_finite() const {
  const torch::NoGradGuard no_grad;
  torch::Tensor sum =
      torch::zeros({}, torch::TensorOptions().dtype(torch::kDouble).device(device_));
  for (const torch::Tensor& parameter : net_->parameters()) {
    sum += parameter.sum(torch::kDouble);
  }
  if (std::isfinite(sum.item<double>())) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat("the training has diverged: after step ", state_.step, " weights are ",
                     "infinite or not a number; try a lower --lr, --clip-norm or --warmup-steps",
                     checkpoint_ ? ". Earlier checkpoints are kept" : ""));
}

// In the middle of an epoch. Collective.
void Trainer::save_within(const Share& share) {
  if (!checkpoint_) return;
  check_finite();
  set_phase(ProgressPhase::kCheckpoint);
  Totals all(device_);
  all.values.copy_(share.totals.values);
  sum_over_ranks(all);
  TrainingState state = state_;
  state.samples = share.done * communicator_.size();
  state.loss_sum = all.loss_sum();
  state.seconds += seconds_since(share.start);
  checkpoint_->save(state, named_tensors(true));
}

// At an epoch's end. Collective.
void Trainer::save() {
  if (!checkpoint_) return;
  set_phase(ProgressPhase::kCheckpoint);
  checkpoint_->save(state_, named_tensors(true));
}

void Trainer::finish_saving() {
  if (!checkpoint_) return;
  set_phase(ProgressPhase::kCheckpoint);
  checkpoint_->finish();
}

bool Trainer::train(Share& share) {
  const auto epoch = static_cast<int>(state_.epochs.size());
  net_->train();
  loader_.set_epoch(static_cast<std::uint64_t>(epoch), share.first);
  const auto steps_in = [this](std::int64_t samples) {
    return static_cast<int>((samples + batch_size_ - 1) / batch_size_);
  };
  ProgressState shown{.epoch = epoch + 1, .num_epochs = options_.num_epochs};
  shown.step = steps_in(share.first);
  shown.num_steps = shown.step + steps_in(sampler_.size() - share.first);
  std::optional<DdpBase::Join> join;
  if (options_.uneven_inputs == UnevenInputs::kJoin) join.emplace(ddp_);
  while (share.done < sampler_.size()) {
    // In a step that not all ranks have, nothing happens that needs all.
    const bool common = share.done < common_samples_;
    if (!common && session_) session_->progress().begin_step(state_.step + 1);
    if (common && asked_to_leave()) {
      save_within(share);
      finish_saving();
      return false;
    }
    train_step(share, shown);
    const std::uint64_t every = options_.checkpoint_every;
    const bool whole = share.done >= common_samples_;  // saved after its evaluation
    if (every > 0 && state_.step % every == 0 && !whole) save_within(share);
  }
  if (join) shadow_others(*join);
  return true;
}

// Of rank 0: none has more.
std::uint64_t Trainer::steps_per_epoch() const {
  const DistributedSampler first(train_images_.count(), communicator_.size(), 0,
                                 sampler_options(options_));
  return static_cast<std::uint64_t>((first.size() + batch_size_ - 1) / batch_size_);
}

// Those whose share is longer. After: what they have, all have.
void Trainer::shadow_others(DdpBase::Join& join) {
  const JoinResult result = join.finish();
  if (session_ && result.num_shadowed > 0) {
    session_->progress().begin_step(state_.step + result.num_shadowed);
  }
  state_.step += result.num_shadowed;
  std::vector<torch::Tensor> of_optimizer;
  for (const NamedTensor& each : optimization_.named_tensors()) of_optimizer.push_back(each.tensor);
  torch_adapter::broadcast_tensors(of_optimizer, result.source_rank, communicator_, device_);
}

// The mean loss over the batch; its gradients are there. `done`: of this epoch's samples, before.
torch::Tensor Trainer::backward(const PinnedLoader::Batch& batch, std::int64_t done) {
  const torch::Tensor &pixels = batch[0], &labels = batch[1];
  // Every rank goes forward equally often, whatever its last batch has.
  const std::int64_t common = std::min(batch_size_, common_samples_ - done);
  const auto num_parts = static_cast<int>(std::clamp<std::int64_t>(common, 1, options_.accumulate));
  torch::Tensor sum;
  const std::vector<MicroBatch> parts = split_batch(labels.size(0), num_parts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::optional<DdpBase::NoSync> local;
    if (i + 1 < parts.size()) local.emplace(ddp_);
    torch::Tensor loss;
    {
      const Autocast mixed = optimization_.autocast();
      loss = torch::nll_loss(ddp_(pixels.narrow(0, parts[i].first, parts[i].count)),
                             labels.narrow(0, parts[i].first, parts[i].count));
    }
    if (parts.size() > 1) loss = loss * parts[i].weight;
    optimization_.scaled(loss).backward();
    sum = sum.defined() ? sum + loss.detach() : loss.detach();
  }
  return sum;
}

void Trainer::train_step(Share& share, ProgressState& shown) {
  const Clock::time_point start = Clock::now();
  const PinnedLoader::Batch batch = *loader_.next();
  ddp_.waited_for_data(Clock::now() - start);
  at::Generator generator = at::globalContext().defaultGenerator(device_);
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(step_seed(options_.seed, communicator_.rank(), state_.step));
  }
  ddp_.zero_grad();
  const torch::Tensor loss = backward(batch, share.done);
  optimization_.step(state_.step, static_cast<int>(state_.epochs.size()));
  share.totals.values[0] += loss * batch[1].size(0);
  step_ms_.push_back(seconds_since(start) * 1e3);

  ++state_.step;
  share.done += batch[1].size(0);
  ++shown.step;
  const bool is_shown = progress_.due(shown);
  // A GPU's loss is waited for where it is shown, and once a second for who watches the job.
  const bool is_told = is_shown || !device_.is_cuda() || start >= loss_due_;
  if (is_told) {
    last_loss_ = shown.loss = loss.item<double>();
    loss_due_ = start + kLossInterval;
  }
  report(last_loss_, batch[1].size(0));
  if (!is_shown) return;
  shown.samples_per_second = static_cast<double>(share.done - share.first) * communicator_.size() /
                             seconds_since(share.start);
  progress_.update(shown);
}

void Trainer::evaluate(Totals& totals) {
  net_->eval();
  const torch::NoGradGuard no_grad;
  // Each rank takes every world-th image, with no padding: every image counts once. There may be
  // more ranks than images.
  const std::int64_t count = test_images_.count();
  const std::int64_t first = std::min<std::int64_t>(communicator_.rank(), count);
  const torch::Tensor mine =
      torch::arange(first, count, communicator_.size(), torch::kLong).to(device_);
  for (const torch::Tensor& batch : mine.split(kTestBatch)) {
    if (batch.size(0) == 0) continue;
    const torch::Tensor labels = test_images_.labels(batch);
    const torch::Tensor output = net_->forward(test_images_.pixels(batch));
    totals.values[0] += torch::nll_loss(output, labels) * batch.size(0);
    totals.values[1] += output.argmax(1).eq(labels).sum();
    totals.values[2] += static_cast<double>(batch.size(0));
  }
}

void Trainer::sum_over_ranks(Totals& totals) {
  Device device;
  if (device_.is_cuda()) device = {.kind = Device::Kind::kCuda, .index = device_.index()};
  const TensorView view{.data = totals.values.mutable_data_ptr(),
                        .count = static_cast<std::size_t>(totals.values.numel()),
                        .dtype = DType::kFloat64,
                        .device = device};
  communicator_.all_reduce(view, ReduceOp::kSum);
}

bool Trainer::run_epoch() {
  EpochResult result{.epoch = static_cast<int>(state_.epochs.size()) + 1};
  // With a number of ranks that doesn't divide them a few samples are seen twice.
  const std::int64_t first = state_.samples / communicator_.size();
  Share share{.totals = Totals(device_), .start = Clock::now(), .first = first, .done = first};
  if (communicator_.rank() == 0) {  // what was done before a checkpoint counts once
    share.totals.values[0] = state_.loss_sum;
    share.totals.values[2] = static_cast<double>(state_.samples);
  }
  if (!train(share)) return false;
  share.totals.values[2] += static_cast<double>(share.done - share.first);
  sum_over_ranks(share.totals);  // its samples: of all ranks, the sampler's padding included
  result.train_loss = share.totals.loss();
  result.seconds = state_.seconds + seconds_since(share.start);
  result.samples_per_second = share.totals.samples() / result.seconds;

  check_finite();
  set_phase(ProgressPhase::kEvaluate);
  Totals testing(device_);
  evaluate(testing);
  sum_over_ranks(testing);
  result.test_loss = testing.loss();
  result.test_accuracy = testing.accuracy();

  state_.epochs.push_back(result);
  state_.samples = 0;
  state_.loss_sum = state_.seconds = 0;
  save();
  return true;
}

double Trainer::median_step_ms() {
  if (step_ms_.empty()) return 0;
  const auto middle = step_ms_.begin() + static_cast<std::ptrdiff_t>(step_ms_.size() / 2);
  std::nth_element(step_ms_.begin(), middle, step_ms_.end());
  return *middle;
}

}  // namespace

std::optional<Summary> run_training(const Options& options, const DataSet& data, const Place& place,
                                    Progress& progress) {
  const bool on_gpu = place.communicator.backend() == "nccl";
  const torch::Device device =
      on_gpu ? torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(place.device))
             : torch::Device(torch::kCPU);
  Trainer trainer(options, data, place, device, progress);
  trainer.resume(data);
  const TrainingState& state = trainer.state();
  Summary summary;
  summary.world_size = place.communicator.size();
  summary.backend = place.communicator.backend();
  summary.device = device.str();
  summary.first_step = state.step + 1;
  while (state.epochs.size() < static_cast<std::size_t>(options.num_epochs)) {
    if (!trainer.run_epoch()) {
      progress.line(concat("train: asked to leave before step ", state.step + 1, ": ",
                           options.checkpoint_dir.empty()
                               ? "nothing is saved without --checkpoint-dir"
                               : "saved; the same command goes on with it"));
      return std::nullopt;
    }
    const EpochResult& result = state.epochs.back();
    char line[160];
    std::snprintf(line, sizeof line,
                  "epoch %d/%d  loss %.4f  test loss %.4f  test accuracy %.4f  %.0f samples/s",
                  result.epoch, options.num_epochs, result.train_loss, result.test_loss,
                  result.test_accuracy, result.samples_per_second);
    progress.line(line);
  }
  trainer.finish_saving();
  if (place.session) {
    place.session->progress().end_step();
    place.session->progress().set_phase(ProgressPhase::kTearDown);
  }
  summary.compress = to_string(options.compression);
  summary.traffic = trainer.traffic();
  if (options.compression.kind != Compression::Kind::kNone) {
    const std::uint64_t num_steps = state.step + 1 - summary.first_step;
    progress.line(concat("train: compress ", summary.compress, ": ",
                         traffic_text(summary.traffic, num_steps)));
  }
  summary.epochs = state.epochs;
  summary.last_step = state.step;
  summary.loading_seconds = trainer.loading_seconds();
  summary.median_step_ms = trainer.median_step_ms();
  summary.steps = trainer.statistics();
  if (summary.steps.num_steps > 0) progress.line("train: " + describe(summary.steps));
  return summary;
}

}  // namespace ddprun::train
