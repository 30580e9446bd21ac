// SPDX-License-Identifier: Apache-2.0
// The jobs of a daemon while it leads, for one term: the hubs and their journal. I/O thread only.
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

  // Begins to lead. `options`, `stores` and `counts` must outlive this. If `gangs` is set, there is
  // a queue of gangs; its journal is added here. `tail_said` gets the answers to ask_for_tails().
  LeaderState(boost::asio::io_context& io, const DaemonOptions& options, RoundStores& stores,
              DaemonCounts& counts, std::optional<KeptJobs> kept,
              std::optional<GangHub::Options> gangs, TailSaid tail_said);
  ~LeaderState();  // closes every agent's connection; no call follows

  AgentHub& hub() { return *hub_; }
  // Both return null if there is no queue.
  GangHub* gang_hub() const { return gangs_.get(); }
  GangPages* gangs() const { return gang_pages_.get(); }

  // See Daemon::when_idle() and Daemon::live_jobs().
  void when_idle(std::chrono::milliseconds timeout, Serve serve, std::function<void()> done);
  std::vector<std::string> live() const;

  std::string journal_trouble() const;
  // Returns why new agents aren't served now, in a few words; empty: they are.
  std::string why_not_ready() const;
  SharedPage& page() { return page_; }  // GET /v1/jobs
  // Makes the state for status pages. Calls `done` at once or later, unless this is destroyed
  // before.
  void watched(std::function<void(WatchedJobs)> done);
  // See AgentHub::ask_for_tails().
  std::vector<membership::TailRoute> ask_for_tails(const std::string& run_id,
                                                   const membership::TailQuestion& question);
  void add_to(DaemonStatus& status) const;
  void add_to(DaemonMetrics& metrics) const;  // all but its status and counts
  // Brings the seconds in `counts` up to date; with very many jobs they may be a moment old.
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
  int exit_code_ = 0;                          // of the last job that ended
  std::unique_ptr<journal::Journal> journal_;  // null: no journal
  std::shared_ptr<AgentHub> hub_;              // shared with its waits
  std::shared_ptr<GangHub> gangs_;             // shared, too; null: there is no queue
  std::shared_ptr<GangPages> gang_pages_;      // shared, too
  bool takes_no_jobs_ = false;                 // takes no new ones
  Clock::time_point next_seconds_{};           // not summed up before
  SharedPage page_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for turns after its end
};

}  // namespace ddprun::rendezvous
