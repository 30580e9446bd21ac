// SPDX-License-Identifier: Apache-2.0
// The jobs of a daemon for one time that it leads: the hubs over their journal. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/daemon/agent_hub.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/daemon_status.h"
#include "rendezvous/daemon/gang_hub.h"
#include "rendezvous/daemon/gang_pages.h"
#include "rendezvous/daemon/jobs_writer.h"
#include "rendezvous/daemon/pending_handshakes.h"
#include "rendezvous/daemon/round_stores.h"
#include "rendezvous/daemon/shared_page.h"
#include "rendezvous/daemon/watchers.h"
#include "rendezvous/journal/journal.h"

namespace ddprun::rendezvous {

class LeaderState {
 public:
  using TailSaid = std::function<void(const membership::action::TailSaid&)>;

  // From here on this daemon decides. `options`, `stores` and `counts` outlive it. `gangs`: it has
  // a queue of them, but for its journal. `tail_said` is told what follows on ask_for_tails().
  LeaderState(boost::asio::io_context& io, const DaemonOptions& options, RoundStores& stores,
              DaemonCounts& counts, std::optional<KeptJobs> kept,
              std::optional<GangHub::Options> gangs, TailSaid tail_said);
  ~LeaderState();  // closes every agent's connection; nothing is called any more
  LeaderState(const LeaderState&) = delete;
  LeaderState& operator=(const LeaderState&) = delete;

  AgentHub& hub() { return *hub_; }
  // Null: there is no queue.
  GangHub* gang_hub() const { return gangs_.get(); }
  GangPages* gangs() const { return gang_pages_.get(); }

  // As Daemon's.
  void when_idle(std::chrono::milliseconds timeout, Serve serve, std::function<void()> done);
  std::vector<std::string> live() const;

  std::string journal_trouble() const;
  // Why who joins now is not served, in a few words; empty: it is.
  std::string why_not_ready() const;
  std::string json() const;             // GET /v1/jobs, at once
  SharedPage& page() { return page_; }  // that, for whoever asks over the network
  // For status pages. `done` is called at once or later, unless this ends before.
  void watched(std::function<void(WatchedJobs)> done);
  // As AgentHub's.
  std::vector<membership::TailRoute> ask_for_tails(const std::string& run_id,
                                                   const membership::TailQuestion& question);
  void add_to(DaemonStatus& status) const;
  void add_to(DaemonMetrics& metrics) const;  // but for its status and its counts
  // Brings the seconds in `counts` up to now, or to a moment ago if there are very many jobs.
  void count_seconds();

 private:
  void open_journal(KeptJobs& kept);
  AgentHub::Options hub_options();
  std::optional<KeepingStatus> keeping() const;
  JobsWriter writer(const std::optional<WatchedLimits>& limits) const;
  using Written = std::function<void(JobsWriter& writer, Clock::duration cost)>;
  void write(const std::optional<WatchedLimits>& limits, Written written);

  boost::asio::io_context& io_;
  const DaemonOptions& options_;
  RoundStores& stores_;
  DaemonCounts& counts_;
  std::string journal_path_;
  int exit_code_ = 0;                          // of the job that ended last
  std::unique_ptr<journal::Journal> journal_;  // null: nothing is kept
  std::shared_ptr<AgentHub> hub_;              // second owner: its waits
  std::shared_ptr<GangHub> gangs_;             // likewise; null: there is no queue
  std::shared_ptr<GangPages> gang_pages_;      // likewise
  bool takes_no_jobs_ = false;                 // new ones
  Clock::time_point next_seconds_{};           // are not summed up before
  SharedPage page_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for turns that outlive this
};

}  // namespace ddprun::rendezvous
