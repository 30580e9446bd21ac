// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/leader_state.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/exit_codes.h"
#include "rendezvous/membership/state.h"
#include "rendezvous/store_server/in_turns.h"

namespace ddprun::rendezvous {

using std::chrono::milliseconds;

namespace {
constexpr milliseconds kWaitAfterLoss{3'000};  // a lost node's connections may stay open
constexpr milliseconds kTurn{2};               // of writing the jobs
// For a shared journal, which jobs wait for.
constexpr milliseconds kFirstSharedRetry{50}, kLastSharedRetry{1'000};
}  // namespace

LeaderState::LeaderState(boost::asio::io_context& io, const DaemonOptions& options,
                         RoundStores& stores, DaemonCounts& counts, std::optional<KeptJobs> kept,
                         std::optional<GangHub::Options> gangs, TailSaid tail_said)
    : io_(io),
      options_(options),
      stores_(stores),
      counts_(counts),
      page_(io, [this](SharedPage::Made made) {
        write(std::nullopt, [made = std::move(made)](JobsWriter& writer, Clock::duration cost) {
          made(writer.take_text(), cost);
        });
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
  if (kept.deposed) {
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
  hub.machine.max_jobs_per_client = options_.max_jobs_per_client;
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
  next_seconds_ = {};
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
      stores_.when_unused(patience, done);  // only one of the two kinds of stores is in use
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
  if (!journal_trouble().empty()) {
    return concat("its journal can't be written: ",
                  journal_->is_shared() ? "nothing is decided" : "jobs go on in memory");
  }
  return {};
}

std::vector<membership::TailRoute> LeaderState::ask_for_tails(
    const std::string& run_id, const membership::TailQuestion& question) {
  // While the journal has trouble, questions would queue up, more of them every second.
  const std::string trouble = journal_trouble();
  if (!trouble.empty()) {
    return std::vector<membership::TailRoute>(
        question.global_ranks.size(),
        {std::nullopt, "nothing is said while the journal is not kept"});
  }
  return hub_->ask_for_tails(run_id, question);
}

JobsWriter LeaderState::writer(const std::optional<WatchedLimits>& limits) const {
  const membership::JobTable& table = hub_->table();
  JobsWriter::Source source;
  source.next_job = [&table](std::uint64_t after) { return table.next_status(after); };
  source.nodes_of = [&table](std::uint64_t number) { return table.nodes_of(number); };
  source.num_jobs = [&table] { return table.num_jobs(); };
  source.finished = &table.finished();
  source.keeping = [this] { return keeping(); };
  return JobsWriter(std::move(source), limits);
}

// Writes the jobs in turns, with other handlers in between.
void LeaderState::write(const std::optional<WatchedLimits>& limits, Written written) {
  struct Writing {
    JobsWriter writer;
    Clock::duration cost{};
  };
  const auto writing = std::make_shared<Writing>(Writing{writer(limits)});
  const auto some = [weak = std::weak_ptr<int>(alive_), writing, written = std::move(written)] {
    if (weak.expired()) return false;
    Moment now = Moment::now();
    const Clock::time_point begun = now.at;
    bool goes_on = true;
    while (goes_on && now.at - begun < kTurn) {
      goes_on = writing->writer.write_some(now);
      now = Moment::now();
    }
    writing->cost += now.at - begun;
    if (!goes_on) written(writing->writer, writing->cost);
    return goes_on;
  };
  if (some()) store::do_in_turns(io_.get_executor(), some);
}

void LeaderState::watched(std::function<void(WatchedJobs)> done) {
  write(WatchedLimits(), [done = std::move(done)](JobsWriter& writer, Clock::duration cost) {
    WatchedJobs jobs = writer.take_watched();
    jobs.cost = cost;
    done(std::move(jobs));
  });
}

void LeaderState::count_seconds() {
  const Clock::time_point begun = Clock::now();
  if (begun < next_seconds_) return;
  counts_.seconds.show(hub_->table().seconds(begun));
  const Clock::time_point now = Clock::now();
  next_seconds_ = now + (now - begun) * SharedPage::kShare;
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
  const membership::JobNumbers& numbers = hub_->table().numbers();
  for (std::size_t i = 0; i < numbers.in_phase.size(); ++i) {
    metrics.jobs[to_string(static_cast<membership::JobPhase>(i))] = numbers.in_phase[i];
  }
  metrics.waiting_nodes = numbers.waiting_nodes;
}

std::optional<KeepingStatus> LeaderState::keeping() const {
  if (!journal_) return std::nullopt;
  const auto trouble = journal_->trouble();
  if (!trouble) return KeepingStatus{};
  return KeepingStatus{trouble->what,
                       std::chrono::duration_cast<milliseconds>(Clock::now() - trouble->since),
                       journal_->is_shared()};
}

}  // namespace ddprun::rendezvous
