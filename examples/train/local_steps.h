// SPDX-License-Identifier: Apache-2.0
// Local SGD: each rank steps alone, and every so many steps the models are averaged
// (docs/local-sgd.md).
#pragma once

#include <memory>

#include "examples/train/model.h"
#include "examples/train/synchronization.h"
#include "worker_sdk/torch/model_averager.h"

namespace ddprun::train {

class LocalSteps : public Synchronization {
 public:
  LocalSteps(const Options& options, Model& model, const Place& place);

  void before_step(std::uint64_t step) override;
  void after_step(std::uint64_t step) override;
  bool is_boundary(std::uint64_t step, bool epoch_begins) const override;
  void settle() override;
  SyncReport report() const override;

 private:
  void average_parameters();
  void average_rest();

  const Options& options_;
  Model& model_;
  Communicator& communicator_;
  ModelAverager parameters_;
  // What one rank has and another hasn't: the mean of what is equal can be another number.
  bool parameters_differ_ = false, rest_differs_ = false;
  std::uint64_t num_averagings_ = 0;
  std::uint64_t sent_bytes_ = 0;  // of all but parameters
};

}  // namespace ddprun::train
