// SPDX-License-Identifier: Apache-2.0
// When and how the ranks' models become one. If DistributedDataParallel averages each step's
// gradients, nothing is left to do here. Otherwise the models are averaged every so many steps, or
// change asynchronously. Includes no torch header.
#pragma once

#include <cstdint>
#include <memory>

#include "apps/train/options.h"
#include "apps/train/place.h"
#include "apps/train/summary.h"
#include "apps/train/trained_model.h"

namespace ddprun::train {

// Used by one thread. Every rank makes the same calls; each subclass decides which of them wait for
// other ranks.
class Synchronization {
 public:
  virtual ~Synchronization() = default;

  virtual void begin_epoch() {}

  // Called before and after each step's forward, backward and optimiser; `step` steps were done
  // before it.
  virtual void before_step(std::uint64_t /*step*/) {}
  virtual void after_step(std::uint64_t /*step*/) {}

  // Returns whether, after `step` steps, all ranks are at the same point of the training and have
  // one model. The training can be saved and left there.
  virtual bool is_boundary(std::uint64_t /*step*/, bool /*epoch_begins*/) const { return true; }

  // Makes parameters, buffers and the optimiser's state the same on all ranks. Called at an epoch's
  // end and before a save. Collective.
  virtual void settle() {}

  virtual SyncReport report() const { return {}; }
};

// Collective. The references outlive the result. Throws what ModelAverager and AsyncParameters
// throw.
std::unique_ptr<Synchronization> make_synchronization(const Options& options, TrainedModel& model,
                                                      const Place& place);

}  // namespace ddprun::train
