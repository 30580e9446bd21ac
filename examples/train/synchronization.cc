// SPDX-License-Identifier: Apache-2.0
#include "examples/train/synchronization.h"

#include "examples/train/async_steps.h"
#include "examples/train/local_steps.h"

namespace ddprun::train {

std::unique_ptr<Synchronization> make_synchronization(const Options& options, Model& model,
                                                      const Place& place) {
  if (options.mode == ModeChoice::kAsync) {
    return std::make_unique<AsyncSteps>(options, model, place);
  }
  if (options.sync_every > 1) return std::make_unique<LocalSteps>(options, model, place);
  return std::make_unique<Synchronization>();
}

}  // namespace ddprun::train
