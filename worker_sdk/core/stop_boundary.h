// SPDX-License-Identifier: Apache-2.0
// The step at which all ranks leave this job: the ranks' StopAgreement over a separate connection,
// which a time-out closes. Owned by Session, used on the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/worker_env.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun {

// Lets all ranks leave at the same step boundary, without a rank ever waiting for another.
// docs/internals/agent-socket.md has the keys and the argument.
class StopAgreement {
 public:
  StopAgreement(int round, int world_size)
      : posted_key_("ddprun/" + std::to_string(round) + "/stop/posted"),
        boundary_key_("ddprun/" + std::to_string(round) + "/stop/boundary"),
        world_size_(world_size) {}

  // Called at the beginning of each step while a stop is asked for: O(1) requests, no wait for
  // other ranks. True: `step` is the boundary or beyond it; don't begin it. `store` is the round's,
  // as all ranks see it. Throws its errors; may be called again, with another connection.
  bool reached(store::Store& store, std::uint64_t step);

 private:
  const std::string posted_key_, boundary_key_;
  const int world_size_;
  bool posted_ = false;
  std::optional<std::uint64_t> boundary_;
};

class StopBoundary {
 public:
  // `connect` opens a connection to the round's store. The references outlive this object.
  StopBoundary(const WorkerEnv& env, std::function<std::unique_ptr<store::Store>()> connect,
               const WorkerProgress& progress)
      : rank_(env.rank),
        connect_(std::move(connect)),
        progress_(progress),
        agreement_(env.round, env.world_size) {}

  // Called at the beginning of each step once a stop is asked for. True: `step` is the boundary or
  // beyond it. False: it isn't, or the agreement was given up, with a warning. That happens after
  // two failures of the store of at most 5 s each, or one to connect. The agent then stops the
  // workers in the end.
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
