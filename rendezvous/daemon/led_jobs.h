// SPDX-License-Identifier: Apache-2.0
// The jobs of a daemon while it leads: the agents' hub, and the journal under it. One object for
// each time that it leads. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/daemon/agent_hub.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/daemon_metrics.h"
#include "rendezvous/daemon/daemon_status.h"
#include "rendezvous/daemon/gang_hub.h"
#include "rendezvous/daemon/gang_pages.h"
#include "rendezvous/daemon/newcomers.h"
#include "rendezvous/daemon/round_stores.h"
#include "rendezvous/daemon/shared_page.h"
#include "rendezvous/daemon/watch_json.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/membership/frame_stream.h"

namespace ddprun::rendezvous {

class LedJobs {
 public:
  // From here on this daemon decides. `options`, `stores` and `counts` outlive it. `gangs`: it has
  // a queue of them, but for its journal.
  LedJobs(boost::asio::io_context& io, const DaemonOptions& options, RoundStores& stores,
          DaemonCounts& counts, std::optional<KeptJobs> kept,
          std::optional<GangHub::Options> gangs);
  ~LedJobs();  // closes every agent's connection; nothing is called any more
  LedJobs(const LedJobs&) = delete;
  LedJobs& operator=(const LedJobs&) = delete;

  // As AgentHub::take().
  void take(const std::shared_ptr<membership::FrameStream>& frames, Newcomer newcomer);
  // A standing agent's. There is a queue.
  void take_node(const std::shared_ptr<membership::FrameStream>& frames, Newcomer newcomer);
  GangPages* gangs() const { return gang_pages_.get(); }  // null: there is no queue

  // As Daemon's.
  void when_idle(std::chrono::milliseconds timeout, Serve serve, std::function<void()> done);
  std::vector<std::string> live() const;

  std::string journal_trouble() const;
  // Why who joins now is not served, in a few words; empty: it is.
  std::string why_not_ready() const;
  std::string json() const;
  SharedPage& page() { return page_; }  // that, for whoever asks over the network
  WatchedJobs watched() const;
  // As AgentHub's; the agent's answer is told to `told`, from on_tail() on.
  membership::TailRoute ask_for_tail(const std::string& run_id, int global_rank,
                                     std::uint64_t request);
  void on_tail(std::function<void(const membership::action::TailSaid&)> told);
  void add_to(DaemonStatus& status) const;
  void add_to(DaemonMetrics& metrics) const;  // but for its status and its counts
  void count_seconds();                       // in `counts`, up to now
  // As AgentHub::when_kept().
  void when_kept(std::function<void()> done) { hub_->when_kept(std::move(done)); }

 private:
  void open_journal(KeptJobs& kept);
  void stop_gangs();
  AgentHub::Options hub_options();
  std::optional<KeepingStatus> keeping() const;

  boost::asio::io_context& io_;
  const DaemonOptions& options_;
  RoundStores& stores_;
  DaemonCounts& counts_;
  std::string journal_path_;
  std::function<void(const membership::action::TailSaid&)> tail_said_;
  int exit_code_ = 0;                          // of the job that ended last
  std::unique_ptr<journal::Journal> journal_;  // null: nothing is kept
  std::shared_ptr<AgentHub> hub_;              // second owner: its waits
  std::shared_ptr<GangHub> gangs_;             // likewise; null: there is no queue
  std::shared_ptr<GangPages> gang_pages_;      // likewise
  bool takes_no_jobs_ = false;                 // new ones
  SharedPage page_;
};

}  // namespace ddprun::rendezvous
