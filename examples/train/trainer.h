// SPDX-License-Identifier: Apache-2.0
// The training loop over the SDK: epochs and their steps, and where a checkpoint is saved. No torch
// header here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "examples/train/evaluation.h"
#include "examples/train/memory_snapshots.h"
#include "examples/train/options.h"
#include "examples/train/place.h"
#include "examples/train/progress.h"
#include "examples/train/synchronization.h"
#include "examples/train/trained_model.h"
#include "examples/train/training_checkpoint.h"
#include "examples/train/training_data.h"
#include "examples/train/training_state.h"

namespace ddprun::train {

// All calls are collective and from one thread. Errors are the communicator's, the checkpoint's,
// DistributedDataParallel's.
class Trainer {
 public:
  // The references outlive this object. Trains on `device`.
  Trainer(const Options& options, const DataSet& data, const Place& place, c10::Device device,
          Progress& progress);

  // Goes on from the newest checkpoint where there is one.
  void resume(const DataSet& data);

  // One more epoch, or the rest of the one under way. False: asked to leave before it was done; it
  // is saved then, if there is a checkpoint directory.
  bool run_epoch();

  // What was saved is on disk when it returns.
  void finish_saving();

  const TrainingState& state() const { return state_; }
  DdpBase& ddp() { return model_->ddp(); }
  SyncReport sync_report() const { return sync_->report(); }
  // That the training waited for its batches.
  double loading_seconds();

 private:
  // Of the epoch under way, in this process alone.
  struct Share {
    Totals totals;
    Clock::time_point start;
    std::int64_t first, done;  // of this rank's samples
  };

  bool train(Share& share);
  void train_step(Share& share, ProgressState& shown);
  std::vector<MicroBatch> parts_of(std::int64_t batch, std::int64_t done) const;
  void shadow_others(DdpBase::Join& join);
  bool asked_to_leave();
  void check_finite() const;
  TrainingState state_within(const Share& share) const;
  void save_within(const Share& share);
  std::optional<TrainingState> newest_state(const std::vector<NamedTensor>& tensors);
  void save();
  void set_phase(ProgressPhase phase);

  const Options& options_;
  Communicator& world_;       // all ranks
  Communicator& data_ranks_;  // those that share the images
  const bool counts_images_;  // of those with the same images this one reports them
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
  std::string from_;      // where it was loaded from: a path, or memory
  double last_loss_ = 0;  // that was computed
  Clock::time_point loss_due_{};
};

}  // namespace ddprun::train
