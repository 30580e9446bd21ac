// SPDX-License-Identifier: Apache-2.0
#include "examples/train/local_steps.h"

namespace ddprun::train {

LocalSteps::LocalSteps(const Options& options, Model& model, const Place& place)
    : options_(options),
      model_(model),
      communicator_(place.communicator),
      parameters_(model.parameters(), place.communicator) {}

void LocalSteps::before_step(std::uint64_t step) { model_.set_alone(step >= options_.sync_after); }

void LocalSteps::after_step(std::uint64_t step) {
  if (step < options_.sync_after) return;
  parameters_differ_ = rest_differs_ = true;
  if ((step + 1) % options_.sync_every != 0) return;
  average_parameters();
  if (options_.sync_optimizer) average_rest();
}

bool LocalSteps::is_boundary(std::uint64_t step, bool epoch_begins) const {
  return epoch_begins || step <= options_.sync_after || step % options_.sync_every == 0;
}

void LocalSteps::average_parameters() {
  parameters_.average();
  parameters_differ_ = false;
  ++num_averagings_;
}

// Where an optimiser has its state may change from one step to the next: made anew each time.
void LocalSteps::average_rest() {
  ModelAverager rest(model_.rest_of_state(), communicator_);
  rest.average();
  sent_bytes_ += rest.sent_bytes();
  rest_differs_ = false;
}

void LocalSteps::settle() {
  if (parameters_differ_) average_parameters();
  if (rest_differs_) average_rest();
}

SyncReport LocalSteps::report() const {
  return {.num_averagings = num_averagings_, .sent_bytes = sent_bytes_ + parameters_.sent_bytes()};
}

}  // namespace ddprun::train
