// SPDX-License-Identifier: Apache-2.0
// Workers that may go on in place when one of them has died (docs/inplace.md). The class finds out
// whether they all ask to, and which of them ends before they can. io thread only.
#pragma once

#include <optional>
#include <string>

#include "agent/node_agent_options.h"
#include "agent/node_reporter.h"
#include "agent/round_workers.h"
#include "agent/worker_talk.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

class KeptWorkers {
 public:
  // All but `say` outlive this.
  KeptWorkers(WorkerTalk& talk, const RoundWorkers& workers, NodeReporter& reporter, Say say);

  // Finds out whether the workers can be kept, and says WorkersKept or WorkersNotKept, now or
  // later.
  void begin();
  // Called when one more worker may have asked to go on.
  void look();
  // Says that they can't be kept, if the answer is still open.
  void give_up(const std::string& why);
  // Called when the workers are stopped, whatever the answer was.
  void stop();

  // Called when a worker has failed.
  void failed(const membership::WorkerFailure& failure);
  // Called when the next round has begun. Returns the failure of a worker that ended after they
  // were kept.
  std::optional<membership::WorkerFailure> go_on();

 private:
  enum class State { kNone, kAsking, kWaiting };  // kWaiting: they wait for the next round

  WorkerTalk& talk_;
  const RoundWorkers& workers_;
  NodeReporter& reporter_;
  const Say say_;
  State state_ = State::kNone;
  std::optional<membership::WorkerFailure> failure_;  // since State::kWaiting
};

}  // namespace ddprun::agent
