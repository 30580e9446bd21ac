// SPDX-License-Identifier: Apache-2.0
#include "examples/train/synchronization.h"

#include "examples/train/async_steps.h"
#include "examples/train/local_steps.h"
#include "examples/train/model.h"

namespace ddprun::train {

std::unique_ptr<Synchronization> make_synchronization(const Options& options, TrainedModel& model,
                                                      const Place& place) {
  if (!has_local_steps(options)) return std::make_unique<Synchronization>();
  auto& whole = dynamic_cast<Model&>(model);  // --parallel refuses local steps
  if (options.mode == ModeChoice::kAsync) {
    return std::make_unique<AsyncSteps>(options, whole, place);
  }
  return std::make_unique<LocalSteps>(options, whole, place);
}

}  // namespace ddprun::train
