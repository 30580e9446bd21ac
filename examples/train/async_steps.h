// SPDX-License-Identifier: Apache-2.0
// Asynchronous steps with bounded staleness: each rank adds what its own step has changed to the
// parameters that all have, and goes on with what they are then (docs/async.md).
#pragma once

#include <memory>
#include <vector>

#include "common/clock.h"
#include "examples/train/model.h"
#include "examples/train/synchronization.h"
#include "worker_sdk/ddp/async_parameters.h"

namespace ddprun::train {

class AsyncSteps : public Synchronization {
 public:
  AsyncSteps(const Options& options, Model& model, const Place& place);

  void begin_epoch() override;
  void before_step(std::uint64_t step) override;
  void after_step(std::uint64_t step) override;
  bool is_boundary(std::uint64_t step, bool epoch_begins) const override;
  // Ends the epoch's asynchronous part: not between two steps of one.
  void settle() override;
  SyncReport report() const override;

 private:
  void read_model();
  void write_model();

  Model& model_;
  Communicator& communicator_;
  // Where NCCL is the job's backend, parameters still travel between hosts' memory.
  const std::unique_ptr<Communicator> own_host_;
  const std::vector<NamedTensor> parameters_;
  std::vector<float> values_, update_;  // as of the last exchange; by how much the step changed it
  AsyncParameters shared_;
  bool in_epoch_ = false;

  std::uint64_t num_exchanges_ = 0, sum_of_leads_ = 0, max_lead_ = 0;
  std::chrono::nanoseconds waited_{0}, trained_{0};
  Clock::time_point epoch_begin_{};
};

}  // namespace ddprun::train
