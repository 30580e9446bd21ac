// SPDX-License-Identifier: Apache-2.0
// Workers that may go on in place when one of them has died (docs/inplace.md). Knows whether they
// all ask to, and which of them ends before they can. io thread only.
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

  // Finds out whether they can be kept. WorkersKept or WorkersNotKept is said, now or later.
  void begin();
  // One more has asked, perhaps.
  void look();
  // They can't be. Nothing happens unless it is being found out.
  void give_up(const std::string& why);
  // They are stopped, whatever was said.
  void stop();

  // One has failed.
  void failed(const membership::WorkerFailure& failure);
  // The next round has begun. Returns the one that has failed since they were kept.
  std::optional<membership::WorkerFailure> go_on();

 private:
  enum class State { kNone, kAsking, kWaiting };  // kWaiting: for the next round

  WorkerTalk& talk_;
  const RoundWorkers& workers_;
  NodeReporter& reporter_;
  const Say say_;
  State state_ = State::kNone;
  std::optional<membership::WorkerFailure> failure_;  // since State::kWaiting
};

}  // namespace ddprun::agent
