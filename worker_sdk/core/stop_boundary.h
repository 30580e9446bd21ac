// SPDX-License-Identifier: Apache-2.0
// The step at which this job is left: the ranks' StopAgreement over a connection of its own, which
// a time-out ends. Owned by Session. The loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/stop_agreement.h"
#include "worker_sdk/core/worker_env.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun {

class StopBoundary {
 public:
  // `connect`: to the round's store. The references outlive this object.
  StopBoundary(const WorkerEnv& env, std::function<std::unique_ptr<store::Store>()> connect,
               const WorkerProgress& progress);

  // At the beginning of each step once a stop is asked for. True: `step` is the boundary or beyond
  // it. False: it isn't; or the agreement was given up, with a warning, after two failures of the
  // store of at most 5 s each, or one to connect: then the agent stops the workers in the end.
  bool reached(std::uint64_t step);

 private:
  // Constant after construction.
  const int rank_;
  const std::function<std::unique_ptr<store::Store>()> connect_;
  const WorkerProgress& progress_;

  StopAgreement agreement_;
  std::unique_ptr<store::Store> store_;  // null: not asked yet, or it has failed
  int num_failures_ = 0;
};

}  // namespace ddprun
