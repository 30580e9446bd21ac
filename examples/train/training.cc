// SPDX-License-Identifier: Apache-2.0
#include "examples/train/training.h"

#include "common/log.h"
#include "examples/train/trainer.h"

namespace ddprun::train {
namespace {

c10::Device device_of(const Place& place) {
  if (place.communicator.backend() != "nccl") return c10::kCPU;
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(place.device)};
}

// False: asked to leave.
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
  if (summary.world_size == 1) shown.bytes_per_step = 0;  // nothing is sent
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

}  // namespace ddprun::train
