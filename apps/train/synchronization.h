// SPDX-License-Identifier: Apache-2.0
// When, and how, the ranks' models become one. DistributedDataParallel averages each step's
// gradients, which leaves nothing to do here. Else the models are averaged every so many steps, or
// change asynchronously. No torch header here.
#pragma once

#include <cstdint>
#include <memory>

#include "apps/train/options.h"
#include "apps/train/place.h"
#include "apps/train/summary.h"
#include "apps/train/trained_model.h"

namespace ddprun::train {

// One thread. Every rank makes the same calls; which of them wait for others is each one's own.
class Synchronization {
 public:
  virtual ~Synchronization() = default;

  virtual void begin_epoch() {}

  // Around each step's forward, backward and optimiser: `step` steps were done before it.
  virtual void before_step(std::uint64_t /*step*/) {}
  virtual void after_step(std::uint64_t /*step*/) {}

  // Whether, after `step` steps, all ranks are at the same point of the training and have one
  // model: it can be left and saved there.
  virtual bool is_boundary(std::uint64_t /*step*/, bool /*epoch_begins*/) const { return true; }

  // Collective: parameters, buffers and the optimiser's state become one. At an epoch's end, and
  // before a save.
  virtual void settle() {}

  virtual SyncReport report() const { return {}; }
};

// Collective. The references outlive it. Throws what ModelAverager and AsyncParameters do.
std::unique_ptr<Synchronization> make_synchronization(const Options& options, TrainedModel& model,
                                                      const Place& place);

}  // namespace ddprun::train
