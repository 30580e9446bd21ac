// SPDX-License-Identifier: Apache-2.0
#include "apps/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "apps/train/synchronization.h"
#include "apps/train/trained_model.h"
#include "apps/train/training_data.h"
#include "common/cgroup_limits.h"
#include "common/clock.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/checkpoint.h"
#include "worker_sdk/torch/kept_on_error.h"
#include "worker_sdk/torch/load_cuda.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {
namespace {

constexpr std::chrono::seconds kLossInterval{1};
constexpr std::size_t kNumKept = 2;  // snapshots

std::int64_t smallest_of_all(std::int64_t value, Communicator& communicator, c10::Device device) {
  const at::Tensor all = at::full({1}, value, at::TensorOptions().dtype(at::kLong).device(device));
  const torch_adapter::KeptOnError kept(communicator, {all});
  communicator.all_reduce({.data = all.mutable_data_ptr(),
                           .count = 1,
                           .dtype = DType::kInt64,
                           .device = torch_adapter::comm_device_of(all)},
                          ReduceOp::kMin);
  return all.item<std::int64_t>();
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr std::int64_t kBatchSize = 256;  // images per batch of an evaluation
constexpr int kLoss = 0, kCorrect = 1, kSamples = 2;

// Sums over samples, kept on the device: nothing waits until a result is asked for.
class Totals {
 public:
  explicit Totals(c10::Device device)
      : values_(at::zeros({3}, at::TensorOptions().dtype(at::kDouble).device(device))) {}

  // `mean` is a scalar on the device, over `count` samples.
  void add_mean_loss(const at::Tensor& mean, std::int64_t count) { values_[kLoss] += mean * count; }
  void add_loss(double sum) { values_[kLoss] += sum; }
  void add_correct(const at::Tensor& count) { values_[kCorrect] += count; }
  void add_samples(std::int64_t count) { values_[kSamples] += static_cast<double>(count); }

  // Replaces this process' sums by those over all ranks. Collective.
  void sum_over_ranks(Communicator& communicator) {
    const torch_adapter::KeptOnError kept(communicator, {values_});
    communicator.all_reduce(torch_adapter::view_of(values_, "totals"), ReduceOp::kSum);
  }

  Totals copy() const {
    Totals totals(*this);
    totals.values_ = values_.clone();
    return totals;
  }

  double loss_sum() const { return values_[kLoss].item<double>(); }
  double loss() const { return loss_sum() / samples(); }
  double accuracy() const { return values_[kCorrect].item<double>() / samples(); }
  double samples() const { return values_[kSamples].item<double>(); }

 private:
  at::Tensor values_;  // loss, correct, samples: doubles
};

// Measures how good the model is. Every image counts once, with any number of ranks. Collective.
Totals evaluate(TrainedModel& model, const Images& images, Communicator& communicator) {
  const c10::NoGradGuard no_grad;
  Totals totals(images.device());
  // Each rank takes every world-th image, without padding. There may be more ranks than images.
  const std::int64_t count = images.count();
  const std::int64_t first = std::min<std::int64_t>(communicator.rank(), count);
  const at::Tensor mine =
      at::arange(first, count, communicator.size(), at::kLong).to(images.device());
  for (const at::Tensor& batch : mine.split(kBatchSize)) {
    if (batch.size(0) == 0) continue;
    const at::Tensor labels = images.labels(batch);
    const at::Tensor output = model.evaluate(images.pixels(batch));
    totals.add_mean_loss(at::nll_loss(output, labels), batch.size(0));
    totals.add_correct(output.argmax(1).eq(labels).sum());
    totals.add_samples(batch.size(0));
  }
  totals.sum_over_ranks(communicator);
  return totals;
}

// The SDK's checkpoints, with the checks that a training can go on from one. All calls are
// collective; errors as Checkpoint's.
class TrainingCheckpoint {
 public:
  // `communicator` outlives this object. Every rank saves its own tensors, if there are any.
  TrainingCheckpoint(const Options& options, Communicator& communicator, c10::Device device,
                     OwnTensors own)
      : own_(std::move(own)),
        checkpoint_({.directory = options.checkpoint_dir,
                     .num_kept = options.checkpoint_keep,
                     .async = options.checkpoint_async,
                     .sharded = options.checkpoint_sharded},
                    communicator, device) {}

  // Loads the newest checkpoint. nullopt: there is none yet. Refuses one of another model or of
  // another run than `run`. Refuses another number of ranks if ranks have tensors of their own.
  std::optional<TrainingState> load(const RunIdentity& run,
                                    const std::vector<NamedTensor>& tensors) {
    const auto accept = [&](std::uint64_t step, const Metadata& metadata) -> std::string {
      const TrainingState state = from_metadata(metadata);
      if (state.step != step) return concat("it is of step ", state.step);
      return first_difference(state.run, run);
    };
    const auto [replicated, own] = split(tensors);
    const std::optional<SavedState> saved = checkpoint_.load(replicated, accept, own);
    if (!saved) return std::nullopt;
    if (!own.empty() && !saved->has_own) {
      throw Error(
          ErrorCode::kInvalidArgument,
          concat("the checkpoint of step ", saved->step,
                 " does not have what is each rank's own (--ignore-parameters, "
                 "--no-broadcast-buffers): it is of another number of ranks; start as many, "
                 "or begin anew in another directory"));
    }
    return from_metadata(saved->metadata);
  }

  void save(const TrainingState& state, const std::vector<NamedTensor>& tensors) {
    const auto [replicated, own] = split(tensors);
    checkpoint_.save(state.step, to_metadata(state), replicated, own);
  }

  void finish() { checkpoint_.finish(); }
  const std::string& path() const { return checkpoint_.path(); }

 private:
  struct Split {
    std::vector<NamedTensor> replicated, own;
  };

  Split split(const std::vector<NamedTensor>& tensors) const {
    Split parts;
    for (const NamedTensor& each : tensors) {
      (own_.has(each.name) ? parts.own : parts.replicated).push_back(each);
    }
    return parts;
  }

  const OwnTensors own_;
  Checkpoint checkpoint_;
};

// The training loop over the SDK: epochs, their steps, and saves of checkpoints. All calls are
// collective and from one thread. Errors are the communicator's, the checkpoint's,
// DistributedDataParallel's.
class Trainer {
 public:
  // The references outlive this object. Trains on `device`.
  Trainer(const Options& options, const DataSet& data, const Place& place, c10::Device device,
          Progress& progress)
      : options_(options),
        world_(place.communicator),
        data_ranks_(place.data_ranks()),
        counts_images_(place.is_first_of_its_images()),
        session_(place.session),
        progress_(progress),
        device_(device),
        data_(options, data, place, device),
        snapshots_(place.snapshots),
        recovered_(place.recovered),
        model_(make_model(options, place, device, data_.steps_per_epoch())),
        sync_(make_synchronization(options, *model_, place)) {}

  // Goes on from the newest checkpoint, if there is one.
  void resume(const DataSet& data) {
    if (options_.checkpoint_dir.empty() && !recovered_) return;
    state_.run = identity_of(options_, data);
    state_.num_threads = at::get_num_threads();
    if (!options_.checkpoint_dir.empty()) {
      checkpoint_ =
          std::make_unique<TrainingCheckpoint>(options_, world_, device_, model_->own_tensors());
    }
    const std::vector<NamedTensor> tensors = model_->tensors_to_load();
    const auto saved = newest_state(tensors);
    if (!saved) {
      return progress_.line(
          checkpoint_ ? concat("train: no checkpoint in ", options_.checkpoint_dir, ": begins anew")
                      : "train: no snapshot yet: begins anew");
    }
    model_->loaded(tensors);
    if (device_.is_cpu() && world_.rank() == 0 && saved->num_threads > 0 &&
        saved->num_threads != state_.num_threads) {
      log_warning("the checkpoint is of a run with --threads ", saved->num_threads,
                  ", this one has ", state_.num_threads,
                  ": it goes on, but doesn't end bit for bit where that one would have");
    }
    const TrainingState here = std::exchange(state_, *saved);
    state_.run = here.run;
    state_.num_threads = here.num_threads;
    if (!state_.gradient_order.empty()) model_->set_gradient_order(state_.gradient_order);
    const std::size_t epoch = state_.epochs.size() + 1;
    progress_.line(epoch > static_cast<std::size_t>(options_.num_epochs)
                       ? concat("train: ", epoch - 1, " epochs are trained already: ", from_)
                       : concat("train: goes on from step ", state_.step + 1, ", epoch ", epoch,
                                "/", options_.num_epochs, ": ", from_));
  }

  // Runs one more epoch, or the rest of the one under way. False: the job was asked to leave before
  // the epoch was done. The state is then saved, if there is a checkpoint directory.
  bool run_epoch() {
    EpochResult result{.epoch = static_cast<int>(state_.epochs.size()) + 1};
    // If the ranks can't share the samples equally, a few samples are seen twice.
    const std::int64_t first = std::min(state_.samples / data_ranks_.size(), data_.num_samples());
    Share share{.totals = Totals(device_), .start = Clock::now(), .first = first, .done = first};
    if (data_ranks_.rank() == 0) {  // samples from before a checkpoint count once
      share.totals.add_loss(state_.loss_sum);
      share.totals.add_samples(state_.samples);
    }
    if (!train(share)) return false;
    share.totals.add_samples(share.done - share.first);
    share.totals.sum_over_ranks(data_ranks_);  // of samples; the sampler's padding is included
    result.train_loss = share.totals.loss();
    result.seconds = state_.seconds + seconds_since(share.start);
    result.samples_per_second = share.totals.samples() / result.seconds;

    check_finite();
    set_phase(ProgressPhase::kEvaluate);
    const Totals testing = evaluate(*model_, data_.test_images(), data_ranks_);
    result.test_loss = testing.loss();
    result.test_accuracy = testing.accuracy();

    state_.epochs.push_back(result);
    state_.samples = 0;
    state_.loss_sum = state_.seconds = 0;
    save();
    return true;
  }

  // Returns when all saves are on disk.
  void finish_saving() {
    if (!checkpoint_) return;
    set_phase(ProgressPhase::kCheckpoint);
    checkpoint_->finish();
  }

  const TrainingState& state() const { return state_; }
  DdpBase& ddp() { return model_->ddp(); }
  SyncReport sync_report() const { return sync_->report(); }
  // Returns the time that the training waited for its batches.
  double loading_seconds() {
    return std::chrono::duration<double>(data_.loader().waited()).count();
  }

 private:
  // This process' share of the current epoch.
  struct Share {
    Totals totals;
    Clock::time_point start;
    std::int64_t first, done;  // counted in this rank's samples
  };

  bool train(Share& share) {
    const auto epoch = static_cast<int>(state_.epochs.size());
    model_->begin_training();
    data_.loader().set_epoch(static_cast<std::uint64_t>(epoch), share.first);
    ProgressState shown{.epoch = epoch + 1, .num_epochs = options_.num_epochs};
    shown.step = static_cast<int>(data_.num_batches(share.first));
    shown.num_steps =
        shown.step + static_cast<int>(data_.num_batches(data_.num_samples() - share.first));
    sync_->begin_epoch();
    std::optional<DdpBase::Join> join;
    if (options_.uneven_inputs == UnevenInputs::kJoin) join.emplace(model_->ddp());
    while (share.done < data_.num_samples()) {
      // A step that some ranks don't have does nothing that needs all ranks. The same holds while
      // the ranks' models differ.
      const bool common = share.done < data_.num_common_samples() &&
                          sync_->is_boundary(state_.step, share.done == share.first);
      if (!common && session_) session_->progress().begin_step(state_.step + 1);
      if (common && asked_to_leave()) {
        save_within(share);
        finish_saving();
        return false;
      }
      train_step(share, shown);
      const std::uint64_t every = options_.checkpoint_every;
      const bool whole = share.done >= data_.num_common_samples();  // saved after evaluation
      const bool saves = every > 0 && state_.step % every == 0 && !whole;
      if (snapshots_ && !whole && (saves || snapshots_->due(state_.step))) {
        snapshots_->keep(state_within(share), model_->tensors_to_save(), world_, device_);
      }
      if (saves) save_within(share);
    }
    if (join) shadow_others(*join);
    sync_->settle();
    return true;
  }

  void train_step(Share& share, ProgressState& shown) {
    const Clock::time_point start = Clock::now();
    const PinnedLoader::Batch batch = *data_.loader().next();
    const at::Tensor &pixels = batch[0], &labels = batch[1];
    const std::int64_t count = labels.size(0);
    model_->ddp().waited_for_data(Clock::now() - start);
    model_->begin_step(state_.step);
    sync_->before_step(state_.step);
    model_->ddp().zero_grad();
    const at::Tensor loss = model_->backward(pixels, labels, parts_of(count, share.done));
    model_->optimization().step(state_.step, static_cast<int>(state_.epochs.size()));
    share.totals.add_mean_loss(loss, count);
    sync_->after_step(state_.step);

    ++state_.step;
    share.done += count;
    ++shown.step;
    const bool is_shown = progress_.due(shown);
    // A GPU's loss is waited for only if it is shown, and once a second for those who watch the
    // job.
    if (is_shown || !device_.is_cuda() || start >= loss_due_) {
      last_loss_ = shown.loss = loss.item<double>();
      loss_due_ = start + kLossInterval;
    }
    if (session_)
      session_->progress().report(last_loss_,
                                  counts_images_ ? static_cast<std::uint64_t>(count) : 0);
    if (!is_shown) return;
    shown.samples_per_second = static_cast<double>(share.done - share.first) * data_ranks_.size() /
                               seconds_since(share.start);
    progress_.update(shown);
  }

  // Returns the parts of a batch that begins at this epoch's sample `done`. Every rank goes forward
  // equally often, whatever the size of its last batch.
  std::vector<MicroBatch> parts_of(std::int64_t batch, std::int64_t done) const {
    const std::int64_t common = std::min(data_.batch_size(), data_.num_common_samples() - done);
    return split_batch(batch,
                       static_cast<int>(std::clamp<std::int64_t>(common, 1, options_.accumulate)));
  }

  // Takes part in the steps of ranks whose share is longer. Afterwards all ranks have the state of
  // those.
  void shadow_others(DdpBase::Join& join) {
    const JoinResult result = join.finish();
    if (session_ && result.num_shadowed > 0) {
      session_->progress().begin_step(state_.step + result.num_shadowed);
    }
    state_.step += result.num_shadowed;
    model_->broadcast_optimizer(result.source_rank, data_ranks_, device_);
  }

  // Returns whether the job was asked to leave; if not, begins the next step.
  bool asked_to_leave() {
    if (!session_) return false;
    return session_->should_stop(state_.step + 1, [this] { synchronize(); });
  }

  // Called before a save, for a model that isn't finite would replace good ones. Collective.
  void check_finite() {
    if (model_->is_finite()) return;
    std::string of_earlier = checkpoint_ ? ". Earlier checkpoints are kept" : "";
    try {
      finish_saving();  // when a rank ends the others are stopped, and rank 0 may be writing
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kSystem) throw;
      of_earlier += concat(", but for the last: ", error.what());
    }
    throw Error(ErrorCode::kInvalidArgument,
                concat("the training has diverged: after step ", state_.step, " weights are ",
                       "infinite or not a number; try a lower --lr, --clip-norm or --warmup-steps",
                       of_earlier));
  }

  // Returns the state in the middle of an epoch. Collective.
  TrainingState state_within(const Share& share) const {
    Totals all = share.totals.copy();
    all.sum_over_ranks(data_ranks_);
    TrainingState state = state_;
    state.samples = share.done * data_ranks_.size();
    state.loss_sum = all.loss_sum();
    state.seconds += seconds_since(share.start);
    state.gradient_order = model_->gradient_order();
    return state;
  }

  // Saves in the middle of an epoch.
  void save_within(const Share& share) {
    if (!checkpoint_) return;
    set_phase(ProgressPhase::kCheckpoint);
    sync_->settle();
    check_finite();
    checkpoint_->save(state_within(share), model_->tensors_to_save());
  }

  // Reads the newest state into `tensors`. After a recovery that is the snapshot that all ranks
  // have, if any. It is never older than the checkpoint on disk, for each save takes a snapshot.
  std::optional<TrainingState> newest_state(const std::vector<NamedTensor>& tensors) {
    std::optional<TrainingState> state;
    if (recovered_ && snapshots_) state = snapshots_->load(tensors, world_, device_);
    if (state) {
      from_ = "memory";
      return state;
    }
    if (!checkpoint_) return std::nullopt;
    state = checkpoint_->load(state_.run, tensors);
    from_ = checkpoint_->path();
    return state;
  }

  // Saves at an epoch's end.
  void save() {
    if (snapshots_) {
      state_.gradient_order = model_->gradient_order();
      snapshots_->keep(state_, model_->tensors_to_save(), world_, device_);
    }
    if (!checkpoint_) return;
    set_phase(ProgressPhase::kCheckpoint);
    state_.gradient_order = model_->gradient_order();
    checkpoint_->save(state_, model_->tensors_to_save());
  }

  // Waits until all that was started on the device is done; returns at once on the CPU.
  void synchronize() const {
    if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
  }

  void set_phase(ProgressPhase phase) {
    if (!session_) return;
    session_->progress().end_step();
    session_->progress().set_phase(phase);
  }

  const Options& options_;
  Communicator& world_;       // all ranks
  Communicator& data_ranks_;  // those that share the images
  const bool counts_images_;  // among the ranks with the same images this one reports them
  Session* const session_;    // null: no launcher
  Progress& progress_;
  const c10::Device device_;
  TrainingData data_;
  MemorySnapshots* const snapshots_;  // null: no recovery in place
  const bool recovered_;
  const std::unique_ptr<TrainedModel> model_;
  const std::unique_ptr<Synchronization> sync_;
  std::unique_ptr<TrainingCheckpoint> checkpoint_;  // null: --checkpoint-dir isn't given
  TrainingState state_;
  std::string from_;      // the source of the loaded state: a path, or memory
  double last_loss_ = 0;  // the last loss that was computed
  Clock::time_point loss_due_{};
};

c10::Device device_of(const Place& place) {
  if (place.communicator.backend() != "nccl") return c10::kCPU;
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(place.device)};
}

// Runs the epochs that are left. False: the job was asked to leave.
bool run_epochs(const Options& options, Trainer& trainer, Progress& progress) {
  const TrainingState& state = trainer.state();
  while (state.epochs.size() < static_cast<std::size_t>(options.num_epochs)) {
    if (!trainer.run_epoch()) {
      progress.line(concat("train: asked to leave before step ", state.step + 1, ": ",
                           options.checkpoint_dir.empty()
                               ? "nothing is saved without --checkpoint-dir"
                               : "saved; the same command goes on with it"));
      return false;
    }
    progress.line(describe(state.epochs.back(), options.num_epochs));
  }
  trainer.finish_saving();
  return true;
}

}  // namespace

void MemorySnapshots::keep(const TrainingState& state, const std::vector<NamedTensor>& tensors,
                           Communicator& communicator, c10::Device device) {
  const c10::NoGradGuard no_grad;
  Snapshot snapshot{state, {}};
  for (const NamedTensor& each : tensors) {
    snapshot.tensors.push_back({each.name, each.tensor.detach().clone()});
  }
  // The step may still be under way on the GPU, and the abort of a communicator ends it with
  // garbage (docs/nccl.md). A barrier after the copies succeeds only if nothing has failed.
  if (device.is_cuda()) communicator.barrier();
  std::erase_if(snapshots_, [&](const Snapshot& old) { return old.state.step >= state.step; });
  if (snapshots_.size() == kNumKept) snapshots_.pop_front();
  snapshots_.push_back(std::move(snapshot));
}

std::optional<TrainingState> MemorySnapshots::load(const std::vector<NamedTensor>& tensors,
                                                   Communicator& communicator, c10::Device device) {
  const auto newest =
      static_cast<std::int64_t>(snapshots_.empty() ? 0 : snapshots_.back().state.step);
  const auto step = static_cast<std::uint64_t>(smallest_of_all(newest, communicator, device));
  std::deque<Snapshot> usable = snapshots_;
  std::erase_if(usable, [&](const Snapshot& each) { return each.state.step > step; });
  const bool is_there = step > 0 && !usable.empty() && usable.back().state.step == step &&
                        usable.back().tensors.size() == tensors.size();
  if (smallest_of_all(is_there ? 1 : 0, communicator, device) == 0) return std::nullopt;
  snapshots_ = std::move(usable);
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> targets;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& from = snapshots_.back().tensors[i];
    if (from.name != tensors[i].name) {
      throw Error(ErrorCode::kProtocol, "a snapshot has other tensors: " + from.name);
    }
    at::Tensor target = tensors[i].tensor.detach();
    target.copy_(from.tensor);
    targets.push_back(std::move(target));
  }
  torch_adapter::broadcast_tensors(targets, 0, communicator, device);
  return snapshots_.back().state;
}

std::optional<Summary> run_training(const Options& options, const DataSet& data, const Place& place,
                                    Progress& progress) {
  const c10::Device device = device_of(place);
  Trainer trainer(options, data, place, device, progress);
  trainer.resume(data);
  Summary summary;
  summary.world_size = place.communicator.size();
  summary.backend = place.communicator.backend();
  summary.device = device.str();
  summary.compress = to_string(options.compression);
  summary.mode = to_string(options.mode);
  summary.first_step = trainer.state().step + 1;
  if (!run_epochs(options, trainer, progress)) return std::nullopt;
  if (place.session) {
    place.session->progress().end_step();
    place.session->progress().set_phase(ProgressPhase::kTearDown);
  }
  summary.epochs = trainer.state().epochs;
  summary.last_step = trainer.state().step;
  summary.steps = trainer.ddp().statistics();
  summary.traffic = trainer.ddp().traffic();
  summary.sync = trainer.sync_report();
  summary.loading_seconds = trainer.loading_seconds();
  StepStatistics shown = summary.steps;
  if (summary.world_size == 1) shown.bytes_per_step = 0;  // a single rank sends nothing
  const std::uint64_t num_steps = summary.last_step + 1 - summary.first_step;
  if (options.compression.kind != Compression::Kind::kNone) {
    if (shown.bytes_per_step > 0 && num_steps > 0) {
      shown.bytes_per_step = summary.traffic.sent_bytes / num_steps;
    }
    progress.line(concat("train: compress ", summary.compress, ": ",
                         traffic_text(summary.traffic, num_steps)));
  }
  if (has_local_steps(options)) {
    const bool is_async = options.mode == ModeChoice::kAsync;
    progress.line("train: " + describe(summary.sync, is_async));
  }
  if (summary.steps.num_steps > 0) progress.line("train: " + describe(shown));
  return summary;
}

void set_compute_threads(int num_threads, int local_world_size) {
  if (num_threads == 0) {
    if (const char* text = std::getenv(env::kOmpNumThreads)) {
      char* end = nullptr;
      const bool is_number = std::strtol(text, &end, 10) >= 1 && (*end == 0 || *end == ',');
      if (is_number) return;  // LibTorch has read this number
      throw Error(ErrorCode::kInvalidArgument,
                  concat(env::kOmpNumThreads, "=\"", text,
                         "\" is no number of threads: set it to 1 or more, unset it, or give "
                         "--threads N"));
    }
    const int cores =
        cpus_of_quota(static_cast<int>(std::thread::hardware_concurrency()), cpu_quota());
    num_threads = std::max(1, cores / std::max(1, local_world_size));
  }
  at::set_num_threads(num_threads);
}

int num_visible_gpus() {
  return load_cuda().empty() ? static_cast<int>(torch::cuda::device_count()) : 0;
}

}  // namespace ddprun::train
