// SPDX-License-Identifier: Apache-2.0
#include "agent/node_reporter.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "agent/gpu/gpu_helper.h"
#include "common/process_facts.h"
#include "common/text.h"

namespace ddprun::agent {

namespace event = membership::agent_event;

namespace {

// For a round in which only the pages are looked at.
constexpr std::chrono::milliseconds kPagesInterval{1'000};

}  // namespace

NodeReporter::NodeReporter(boost::asio::io_context& io, const NodeAgentOptions& options,
                           const WorkerTalk& talk, const RoundWorkers& workers,
                           const NodeNews& news, Say say)
    : io_(io),
      options_(options),
      talk_(talk),
      workers_(workers),
      news_(news),
      say_(std::move(say)),
      node_monitor_(io, {.gpus_program = helper_program("ddprun-gpus")},
                    [this](membership::NodeReport report) { read_node(std::move(report)); }) {}

void NodeReporter::start() {
  waiting_since_ = Clock::now();
  node_monitor_.start();
}

void NodeReporter::count_round(bool in_place) {
  const Clock::time_point now = Clock::now();
  if (const auto since = std::exchange(waiting_since_, std::nullopt)) {
    counts_.waits.observe(std::chrono::duration<double>(now - *since).count());
  }
  const bool failed = std::exchange(failed_here_, false);
  if (!in_place && counts_.rounds > 0) {
    ++(failed ? counts_.restarts_after_failure : counts_.restarts_otherwise);
  }
  ++counts_.rounds;
}

void NodeReporter::round_began(const membership::StartRound& round) const {
  if (news_.round_began) news_.round_began(round);
}

void NodeReporter::workers_run(const std::vector<pid_t>& pids) const {
  if (news_.workers_run) news_.workers_run(pids);
}

void NodeReporter::worker_failed(const membership::WorkerFailure& failure) {
  failed_here_ = true;
  worker_ended(exit_of(failure, !failure.out_of_memory.empty() ? ExitKind::kOutOfMemory
                                : failure.signal_number != 0   ? ExitKind::kSignal
                                                               : ExitKind::kError));
  if (news_.worker_failed) news_.worker_failed(failure);
}

void NodeReporter::worker_ended(const WorkerExit& exit) {
  ++counts_.of(exit.kind);
  if (news_.worker_ended) news_.worker_ended(exit);
}

void NodeReporter::workers_gone() {
  waiting_since_ = Clock::now();
  tell_progress();
  if (news_.workers_gone) news_.workers_gone();
}

void NodeReporter::watch(std::uint64_t round) {
  monitor_.reset();
  HangMonitorOptions options;
  options.limits = options_.hang_limits;
  options.num_workers = options_.environment.num_workers;
  options.ranks = talk_.ranks();
  options.stacks_program = options_.stacks_program;
  options.gpus_program = helper_program("ddprun-gpus");
  options.pages_only = options_.machine.join.settings.hang_action == membership::HangAction::kOff;
  if (options.pages_only) options.interval = kPagesInterval;
  HangMonitorEvents events;
  events.read_page = [this](int local_rank) { return talk_.read_page(local_rank); };
  events.read_progress = [this](int local_rank) { return talk_.read_progress(local_rank); };
  events.read_communicators = [this](int local_rank) { return talk_.communicators(local_rank); };
  events.pids = [this] { return workers_.pids(); };
  events.stalled = [this, round](membership::RankReport report) {
    say_(event::RankStalled{round, std::move(report)});
  };
  events.inspected = [this, round](std::uint64_t inquiry,
                                   std::vector<membership::RankReport> ranks) {
    say_(event::RanksInspected{round, inquiry, std::move(ranks)});
  };
  events.steps_timed = [this, round](std::vector<membership::RankStepTime> ranks,
                                     std::optional<membership::TrainingStatus> training) {
    event::StepsTimed timed{round, std::move(ranks), std::move(training)};
    if (timed.training) {
      timed.monitor = take_node_report();
      for (int i = 0; i < talk_.pages().num_workers(); ++i) {
        membership::add_framework(timed.training->framework, talk_.framework(i));
      }
    }
    say_(timed);
  };
  monitor_ = std::make_unique<HangMonitor>(io_, std::move(options), std::move(events));
  monitor_->start();
}

void NodeReporter::inspect(std::uint64_t inquiry) {
  if (monitor_) monitor_->inspect(inquiry);
}

// Returns the node's report, so that it goes out in one message with its ranks' progress. A
// rendezvous of a thousand nodes has half as many messages to read then.
std::optional<membership::NodeReport> NodeReporter::take_node_report() {
  auto report = node_monitor_.take_report();
  if (report) tell_node(*report);
  return report;
}

void NodeReporter::read_node(membership::NodeReport report) const {
  tell_node(report);
  say_(event::NodeRead{std::move(report)});
}

void NodeReporter::tell_node(const membership::NodeReport& report) const {
  if (news_.node_read) news_.node_read(report);
  tell_progress();
}

void NodeReporter::tell_progress() const {
  if (!news_.progressed) return;
  std::vector<RankProgress> ranks;
  for (int i = 0; i < talk_.pages().num_workers(); ++i) {
    if (const auto words = talk_.read_progress(i)) {
      ranks.push_back({talk_.ranks().of(i), *words, talk_.framework(i)});
    }
  }
  if (!ranks.empty()) news_.progressed(ranks);
}

AgentMetrics NodeReporter::metrics() {
  AgentMetrics all;
  all.job = options_.machine.join.run_id;
  all.node_rank = workers_.node_rank();
  all.round = talk_.round();
  const std::vector<pid_t> pids = workers_.pids();
  const auto num = pids.size() - static_cast<std::size_t>(std::count(pids.begin(), pids.end(), 0));
  (workers_.are_stopping() ? all.num_stopping : all.num_running) = num;
  all.counts = counts_;
  all.node = node_monitor_.read();
  all.uses = worker_uses_.look(pids, Clock::now());
  for (std::size_t i = 0; i < all.uses.size(); ++i) {
    const int local_rank = static_cast<int>(i);
    all.pages.push_back(pids[i] != 0 ? talk_.read_progress(local_rank) : std::nullopt);
    std::string framework = pids[i] != 0 ? talk_.framework(local_rank) : "";
    all.frameworks.push_back(framework.empty() ? std::nullopt
                                               : std::optional(std::move(framework)));
  }
  all.process = metrics::own_use();
  return all;
}

static_assert(OutputTail::kNumLines == membership::kMaxTailLines);

void NodeReporter::read_tail(const membership::agent_action::ReadTail& wanted) const {
  const auto answer = [this, request = wanted.request](LastOutput last) {
    membership::Tail tail{request, std::move(last.lines), std::move(last.note)};
    say_(event::TailRead{std::move(tail)});
  };
  if (!options_.workers.output.is_watched) {
    return answer({{},
                   concat("switched off for this job: ddprun on ", host_name(),
                          " runs with --watch-output=off")});
  }
  if (wanted.kind == membership::TailKind::kStack) return read_stack(wanted, answer);
  if (workers_.look(wanted.round, wanted.global_rank, answer)) return;
  answer({{},
          concat("rank ", wanted.global_rank, " of round ", wanted.round,
                 " is not, or not yet, on ", host_name())});
}

void NodeReporter::read_stack(const membership::agent_action::ReadTail& wanted,
                              const std::function<void(LastOutput)>& answer) const {
  const bool is_live = monitor_ && wanted.round == talk_.round();
  for (int i = 0; is_live && i < options_.environment.num_workers; ++i) {
    if (talk_.ranks().of(i) != wanted.global_rank) continue;
    return monitor_->take_stack(i, [answer](auto lines, auto note) {
      answer({std::move(lines), std::move(note)});
    });
  }
  answer({{}, concat("it doesn't run on ", host_name(), ", or not yet")});
}

}  // namespace ddprun::agent
