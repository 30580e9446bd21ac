// SPDX-License-Identifier: Apache-2.0
#include "examples/train/trainer.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "examples/train/compute_device.h"

namespace ddprun::train {
namespace {

constexpr std::chrono::seconds kLossInterval{1};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Trainer::Trainer(const Options& options, const DataSet& data, const Place& place,
                 c10::Device device, Progress& progress)
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

double Trainer::loading_seconds() {
  return std::chrono::duration<double>(data_.loader().waited()).count();
}

void Trainer::resume(const DataSet& data) {
  if (options_.checkpoint_dir.empty() && !recovered_) return;
  state_.run = identity_of(options_, data);
  state_.num_threads = compute_threads();
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
    log_warning("the checkpoint is of a run with --threads ", saved->num_threads, ", this one has ",
                state_.num_threads,
                ": it goes on, but doesn't end bit for bit where that one would have");
  }
  const TrainingState here = std::exchange(state_, *saved);
  state_.run = here.run;
  state_.num_threads = here.num_threads;
  if (!state_.gradient_order.empty()) model_->set_gradient_order(state_.gradient_order);
  const std::size_t epoch = state_.epochs.size() + 1;
  progress_.line(epoch > static_cast<std::size_t>(options_.num_epochs)
                     ? concat("train: ", epoch - 1, " epochs are trained already: ", from_)
                     : concat("train: goes on from step ", state_.step + 1, ", epoch ", epoch, "/",
                              options_.num_epochs, ": ", from_));
}

// What all ranks have in memory is never older than what is on disk: each save has its snapshot.
std::optional<TrainingState> Trainer::newest_state(const std::vector<NamedTensor>& tensors) {
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

void Trainer::set_phase(ProgressPhase phase) {
  if (!session_) return;
  session_->progress().end_step();
  session_->progress().set_phase(phase);
}

// Begins the next step where not.
bool Trainer::asked_to_leave() {
  if (!session_) return false;
  return session_->should_stop(state_.step + 1, [this] { synchronize(device_); });
}

// Before a save: it would push good ones out.
void Trainer::check_finite() const {
  if (model_->is_finite()) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat("the training has diverged: after step ", state_.step, " weights are ",
                     "infinite or not a number; try a lower --lr, --clip-norm or --warmup-steps",
                     checkpoint_ ? ". Earlier checkpoints are kept" : ""));
}

// In the middle of an epoch.
void Trainer::save_within(const Share& share) {
  if (!checkpoint_) return;
  set_phase(ProgressPhase::kCheckpoint);
  sync_->settle();
  check_finite();
  checkpoint_->save(state_within(share), model_->tensors_to_save());
}

// Collective.
TrainingState Trainer::state_within(const Share& share) const {
  Totals all = share.totals.copy();
  all.sum_over_ranks(data_ranks_);
  TrainingState state = state_;
  state.samples = share.done * data_ranks_.size();
  state.loss_sum = all.loss_sum();
  state.seconds += seconds_since(share.start);
  state.gradient_order = model_->gradient_order();
  return state;
}

// At an epoch's end.
void Trainer::save() {
  if (snapshots_) {
    state_.gradient_order = model_->gradient_order();
    snapshots_->keep(state_, model_->tensors_to_save(), world_, device_);
  }
  if (!checkpoint_) return;
  set_phase(ProgressPhase::kCheckpoint);
  state_.gradient_order = model_->gradient_order();
  checkpoint_->save(state_, model_->tensors_to_save());
}

void Trainer::finish_saving() {
  if (!checkpoint_) return;
  set_phase(ProgressPhase::kCheckpoint);
  checkpoint_->finish();
}

bool Trainer::run_epoch() {
  EpochResult result{.epoch = static_cast<int>(state_.epochs.size()) + 1};
  // With a number of ranks that doesn't divide them a few samples are seen twice.
  const std::int64_t first = state_.samples / data_ranks_.size();
  Share share{.totals = Totals(device_), .start = Clock::now(), .first = first, .done = first};
  if (data_ranks_.rank() == 0) {  // what was done before a checkpoint counts once
    share.totals.add_loss(state_.loss_sum);
    share.totals.add_samples(state_.samples);
  }
  if (!train(share)) return false;
  share.totals.add_samples(share.done - share.first);
  share.totals.sum_over_ranks(data_ranks_);  // of samples: the sampler's padding included
  result.train_loss = share.totals.loss();
  result.seconds = state_.seconds + seconds_since(share.start);
  result.samples_per_second = share.totals.samples() / result.seconds;

  check_finite();
  set_phase(ProgressPhase::kEvaluate);
  const auto forward = [this](const at::Tensor& pixels) { return model_->evaluate(pixels); };
  const Totals testing = evaluate(forward, data_.test_images(), data_ranks_);
  result.test_loss = testing.loss();
  result.test_accuracy = testing.accuracy();

  state_.epochs.push_back(result);
  state_.samples = 0;
  state_.loss_sum = state_.seconds = 0;
  save();
  return true;
}

bool Trainer::train(Share& share) {
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
    // In a step that not all ranks have, nothing happens that needs all.
    // Nor between two moments at which the ranks' models are one.
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
    const bool whole = share.done >= data_.num_common_samples();  // saved after its evaluation
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

// Those whose share is longer. After: what they have, all have.
void Trainer::shadow_others(DdpBase::Join& join) {
  const JoinResult result = join.finish();
  if (session_ && result.num_shadowed > 0) {
    session_->progress().begin_step(state_.step + result.num_shadowed);
  }
  state_.step += result.num_shadowed;
  model_->broadcast_optimizer(result.source_rank, data_ranks_, device_);
}

// Of a batch that begins at this epoch's sample `done`. Every rank goes forward equally often,
// whatever its last batch has.
std::vector<MicroBatch> Trainer::parts_of(std::int64_t batch, std::int64_t done) const {
  const std::int64_t common = std::min(data_.batch_size(), data_.num_common_samples() - done);
  return split_batch(batch,
                     static_cast<int>(std::clamp<std::int64_t>(common, 1, options_.accumulate)));
}

void Trainer::train_step(Share& share, ProgressState& shown) {
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
  // A GPU's loss is waited for where it is shown, and once a second for who watches the job.
  if (is_shown || !device_.is_cuda() || start >= loss_due_) {
    last_loss_ = shown.loss = loss.item<double>();
    loss_due_ = start + kLossInterval;
  }
  if (session_)
    session_->progress().report(last_loss_, counts_images_ ? static_cast<std::uint64_t>(count) : 0);
  if (!is_shown) return;
  shown.samples_per_second = static_cast<double>(share.done - share.first) * data_ranks_.size() /
                             seconds_since(share.start);
  progress_.update(shown);
}

}  // namespace ddprun::train
