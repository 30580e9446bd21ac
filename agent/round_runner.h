// SPDX-License-Identifier: Apache-2.0
// Carries out a machine's orders about this node's workers, from round to round: they start, go on
// and end. Waits for parked workers to end, and for GPU memory to be free. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "agent/gpu/gpu_helper.h"
#include "agent/node_agent_options.h"
#include "agent/node_reporter.h"
#include "agent/round_workers.h"
#include "agent/warden_process.h"
#include "agent/worker_group.h"
#include "agent/worker_talk.h"
#include "common/clock.h"
#include "common/unique_fd.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

// Workers that may go on in place when one of them has died (docs/inplace.md). The class finds out
// whether they all ask to, and which of them ends before they can. io thread only.
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

class RoundRunner {
 public:
  // All but `say` and `tell` outlive this. The runner listens to `talk` and `workers`.
  RoundRunner(boost::asio::io_context& io, const NodeAgentOptions& options, WorkerTalk& talk,
              RoundWorkers& workers, NodeReporter& reporter, Say say, Tell tell);

  // Sets why this node can't run its workers in any round; empty: it can.
  void set_unfit(const std::string& why) { unfit_ = why; }

  // Each carries out the machine's action of its name.
  void spawn(const membership::StartRound& round);
  void prewarm();
  void keep_workers();
  void go_on(const membership::StartRound& round);
  void ask_to_leave(const membership::agent_action::RequestStop& request);
  void stop_workers(const membership::agent_action::StopWorkers& stop);

  // Begins to import what the workers will import, if that is wanted.
  void start_warm_helper();
  // Ends a wait for GPU memory.
  void hurry();
  // Called when no round comes any more: the warden of parked workers kills them.
  void leave();
  bool has_parked() const { return parked_ != nullptr; }
  // Returns its memory in RAM; nullopt: there is no helper.
  std::optional<std::size_t> warm_helper_bytes() const;

 private:
  WorkerGroupEvents group_events();
  std::string why_unfit() const;
  void refuse(const std::string& reason);
  void open_gpus();
  void start_workers(const membership::StartRound& round);
  void start_when_warm(const membership::StartRound& round);
  void spawn_later();
  bool place_parked(const membership::StartRound& round);
  void parked_failed(const std::string& why);
  void parked_gone();
  void worker_failed(membership::WorkerFailure failure, Clock::time_point at);
  void all_run();
  void workers_gone();

  boost::asio::io_context& io_;
  const NodeAgentOptions& options_;
  WorkerTalk& talk_;
  RoundWorkers& workers_;
  NodeReporter& reporter_;
  const Say say_;
  const Tell tell_;

  KeptWorkers kept_;
  std::unique_ptr<ParkedWorkers> parked_;  // set: a spare's workers, or they are being dismissed
  std::shared_ptr<WarmHelper> warm_;       // shared with its waits; null: none is wanted
  UniqueFd warm_list_;                     // as in WarmOptions::list
  std::set<std::string> said_of_helpers_;  // a new helper may have the trouble of the one before
  Clock::duration warming_{};              // how long the round's workers waited for it
  std::shared_ptr<OrphanSweep> sweep_;     // shared with its wait
  // The round to start when parked_ has gone, or warm_ is ready.
  std::optional<membership::StartRound> spawn_later_;
  bool prewarm_later_ = false;       // to prewarm when warm_ is ready
  bool stop_later_ = false;          // WorkersGone is due when parked_ has gone
  std::shared_ptr<GpuMemory> gpus_;  // null: no GPUs here, or no round yet
  std::string unfit_;                // as in set_unfit()
  std::string undead_;               // processes that can't be killed, of an earlier round
};

}  // namespace ddprun::agent
