// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/leader_state.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/check.h"
#include "common/exit_codes.h"

namespace ddprun::rendezvous {

using std::chrono::milliseconds;

namespace {
constexpr milliseconds kWaitAfterLoss{3'000};  // a lost node's connections may not end
// For a journal that others may write to: jobs wait for it.
constexpr milliseconds kFirstSharedRetry{50}, kLastSharedRetry{1'000};
}  // namespace

LeaderState::LeaderState(boost::asio::io_context& io, const DaemonOptions& options,
                         RoundStores& stores, DaemonCounts& counts, std::optional<KeptJobs> kept,
                         std::optional<GangHub::Options> gangs, TailSaid tail_said)
    : io_(io), options_(options), stores_(stores), counts_(counts), page_(io, [this] {
        return json();
      }) {
  counts_.seconds.begin();
  if (kept) open_journal(*kept);
  AgentHub::Options hub = hub_options();
  hub.tail_said = std::move(tail_said);
  hub_ = std::make_shared<AgentHub>(io_, std::move(hub));
  if (kept) hub_->restore(kept->content);
  if (gangs) {
    gangs->journal = journal_.get();
    gangs_ = std::make_shared<GangHub>(io_, *std::move(gangs));
    gang_pages_ = GangPages::make(io_, gangs_);
    if (kept) gangs_->restore(kept->content.rows);
  }
}

void LeaderState::open_journal(KeptJobs& kept) {
  journal_path_ = kept.writer->name();
  journal::JournalOptions keeping;
  keeping.deposed = kept.deposed;
  if (kept.is_shared) {
    keeping.is_shared = true;
    keeping.first_retry = kFirstSharedRetry;
    keeping.last_retry = kLastSharedRetry;
  }
  journal_ = std::make_unique<journal::Journal>(
      std::move(kept.writer),
      [&io = io_](std::function<void()> call) { boost::asio::post(io, std::move(call)); },
      std::move(keeping));
}

AgentHub::Options LeaderState::hub_options() {
  AgentHub::Options hub;
  hub.machine.reconnect_grace = options_.reconnect_grace;
  hub.machine.embedded = options_.embedded;
  hub.machine.embedding_pid = ::getpid();
  hub.machine.keep_finished = options_.keep_finished;
  hub.machine.journalled = journal_ != nullptr;
  hub.machine.shared = journal_ != nullptr && journal_->is_shared();
  hub.journal = journal_.get();
  hub.join_timeout = options_.handshake_timeout;
  hub.of_job = options_.job_limits;
  hub.in_all = options_.limits;
  hub.asks_kernel = !options_.token && !options_.tls;
  hub.quiet = options_.embedded;
  hub.round_started = [this](const auto& started) {
    if (started.on_daemon_port) stores_.begin_round(started.run_id, started.round, started.owner);
    if (!started.rendezvous) return;
    ++counts_.rounds;
    counts_.rendezvous.observe(*started.rendezvous);
  };
  hub.round_over = [this](const auto& over) {
    ++counts_.round_ends[static_cast<std::size_t>(over.end)];
  };
  hub.job_over = [this](const auto& over) {
    exit_code_ = over.exit_code;
    ++(over.exit_code == 0 ? counts_.jobs_succeeded : counts_.jobs_failed);
    if (over.on_daemon_port) stores_.end_rounds();
    if (options_.job_over) options_.job_over(over.run_id);
  };
  return hub;
}

LeaderState::~LeaderState() {
  count_seconds();
  if (gangs_) {
    gang_pages_->stop();
    gangs_->stop();
  }
  hub_->stop();
  journal_.reset();
}

void LeaderState::when_idle(milliseconds timeout, Serve serve, std::function<void()> done) {
  takes_no_jobs_ = true;
  std::optional<milliseconds> limit;
  if (serve == Serve::kUntilTimeout) limit = timeout;
  hub_->when_idle(limit, [this, timeout, done = std::move(done)] {
    if (exit_code_ == 0) return done();
    const bool lost = exit_code_ == static_cast<int>(ExitCode::kRetryable);
    const auto patience = lost ? std::min(timeout, kWaitAfterLoss) : timeout;
    hub_->when_stores_unused(patience, [this, patience, done] {
      stores_.when_unused(patience, done);  // one of the two was never used
    });
  });
}

std::vector<std::string> LeaderState::live() const {
  std::vector<std::string> ids;
  for (const auto& job : hub_->status()) {
    if (!job.verdict && job.round > 0) ids.push_back(job.run_id);
  }
  return ids;
}

std::string LeaderState::journal_trouble() const {
  const auto now = keeping();
  return now ? now->trouble : std::string();
}

std::string LeaderState::why_not_ready() const {
  if (takes_no_jobs_) return "it takes no new jobs: it ends with those that it has";
  if (!journal_trouble().empty()) return "its journal can't be written: jobs go on in memory";
  return {};
}

std::vector<membership::TailRoute> LeaderState::ask_for_tails(
    const std::string& run_id, const membership::TailQuestion& question) {
  // Questions would wait behind what is not kept, more of them every second.
  const std::string trouble = journal_trouble();
  if (!trouble.empty()) {
    return std::vector<membership::TailRoute>(
        question.global_ranks.size(),
        {std::nullopt, "nothing is said while the journal is not kept"});
  }
  return hub_->ask_for_tails(run_id, question);
}

void LeaderState::add_to(DaemonStatus& status) const {
  const membership::JobTable& table = hub_->table();
  status.live_jobs = {table.num_jobs()};
  status.finished_jobs.number = table.finished().size();
  status.agents.number = hub_->num_agents() - hub_->num_unjoined();
  status.joins = {hub_->num_unjoined()};
  status.proxied_stores = hub_->store_usage();
  status.port_stores = stores_.usage();
  status.keeping = keeping();
  status.journal_path = journal_path_;
}

void LeaderState::add_to(DaemonMetrics& metrics) const {
  for (const char* phase : {"forming", "running", "stopping", "ended"}) {
    metrics.jobs[phase] = 0;
  }
  for (const membership::JobStatus& job : hub_->status()) {
    ++metrics.jobs[job.phase];
    if (job.phase != "forming") continue;
    metrics.waiting_nodes += static_cast<std::size_t>(
        std::ranges::count_if(job.nodes, &membership::NodeStatus::connected));
  }
}

std::optional<KeepingStatus> LeaderState::keeping() const {
  if (!journal_) return std::nullopt;
  const auto trouble = journal_->trouble();
  if (!trouble) return KeepingStatus{};
  return KeepingStatus{trouble->what,
                       std::chrono::duration_cast<milliseconds>(Clock::now() - trouble->since)};
}

}  // namespace ddprun::rendezvous
