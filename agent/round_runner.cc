// SPDX-License-Identifier: Apache-2.0
#include "agent/round_runner.h"

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <utility>
#include <vector>

#include "agent/agent_socket.h"
#include "agent/preflight/node_checks.h"
#include "common/error.h"
#include "common/log_level.h"
#include "common/memory.h"
#include "common/process_facts.h"
#include "common/text.h"

namespace ddprun::agent {

namespace event = membership::agent_event;
namespace action = membership::agent_action;

namespace {

// The driver may need seconds to free what a killed process had on a GPU.
constexpr std::chrono::milliseconds kGpuMemoryLimit{5'000};

}  // namespace

RoundRunner::RoundRunner(boost::asio::io_context& io, const NodeAgentOptions& options,
                         WorkerTalk& talk, RoundWorkers& workers, NodeReporter& reporter, Say say,
                         Tell tell)
    : io_(io),
      options_(options),
      talk_(talk),
      workers_(workers),
      reporter_(reporter),
      say_(std::move(say)),
      tell_(std::move(tell)),
      kept_(talk, workers, reporter, say_) {
  talk_.on_recovery_asked([this] { kept_.look(); });
  workers_.listen(group_events());
}

WorkerGroupEvents RoundRunner::group_events() {
  WorkerGroupEvents events;
  events.all_running = [this] { all_run(); };
  events.worker_failed = [this](membership::WorkerFailure failure, Clock::time_point at) {
    worker_failed(std::move(failure), at);
  };
  events.ended = [this](const WorkerExit& exit) { reporter_.worker_ended(exit); };
  events.all_succeeded = [this] {
    talk_.read_pending();
    say_(event::WorkersSucceeded{talk_.round()});
    kept_.give_up("they have finished");
  };
  events.fenced = [this] { say_(event::WorkersFenced{talk_.round()}); };
  events.all_left = [this] { say_(event::WorkersLeft{talk_.round()}); };
  events.given_up = [this](const std::string& who) {
    undead_ = who;
    tell_(LogLevel::kError,
          concat("these processes were killed and don't end, ddprun goes on without them; this "
                 "node takes no further round: ",
                 who));
  };
  events.all_gone = [this] { workers_gone(); };
  return events;
}

// ---- A round begins ----

void RoundRunner::spawn(const membership::StartRound& round) {
  workers_.begin(round);
  warming_ = {};
  prewarm_later_ = false;
  reporter_.count_round(false);
  if (const std::string why = why_unfit(); !why.empty()) return refuse(why);
  reporter_.round_began(round);
  workers_.begin_logs(round);
  open_gpus();
  if (!parked_) return start_when_warm(round);
  if (place_parked(round)) return;
  spawn_later_ = round;
  parked_->dismiss();
}

// Checks the node again, since a spare may have waited for days.
std::string RoundRunner::why_unfit() const {
  if (!undead_.empty()) return "processes of an earlier round can't be killed: " + undead_;
  // An old rendezvous ignores what the join said about this.
  if (!unfit_.empty()) return "its preflight failed: " + unfit_;
  if (!options_.needs) return "";
  auto problems = check_node(*options_.needs, gather_node_facts(*options_.needs));
  std::erase_if(problems,
                [](const NodeProblem& each) { return each.verdict == NodeVerdict::kSaid; });
  return problems.empty() ? "" : "its preflight failed: " + to_text(problems);
}

// Asks the rendezvous to stop the round, in which nothing runs here.
void RoundRunner::refuse(const std::string& reason) {
  if (parked_) parked_->dismiss();
  membership::WorkerRequest request;
  request.round = talk_.round();
  request.global_rank = membership::kAgentItself;
  request.reason = reason;
  say_(event::WorkerAsks{std::move(request)});
}

void RoundRunner::open_gpus() {
  if (!gpus_) gpus_ = GpuMemory::open(io_, helper_program("ddprun-gpus"));
}

void RoundRunner::start_workers(const membership::StartRound& round) {
  reporter_.watch(round.round);
  workers_.start(round, warm_.get());
  // A helper that could not be used is replaced for the next round.
  if (warm_ && warm_->is_lost()) start_warm_helper();
}

// ---- Workers that have imported modules before they start (docs/warm.md) ----

void RoundRunner::start_warm_helper() {
  if (!options_.warm.is_wanted()) return;
  const auto tell_once = [this](LogLevel level, const std::string& line) {
    if (said_of_helpers_.insert(line).second) tell_(level, line);
  };
  WarmOptions options = options_.warm;
  options.in_a_hurry = !warm_;  // beside a helper that is replaced workers run
  if (options.is_auto && !warm_list_) {
    try {
      warm_list_ = make_memory_file("ddprun-modules");
    } catch (const Error&) {
      // A helper that replaces another learns the list anew.
    }
  }
  options.list = warm_list_.get();
  warm_ = WarmHelper::start(io_, options, worker_arguments(options_.command, 0),
                            parked_environment(options_.environment, 0, ""), tell_once,
                            [this] { sweep_ = OrphanSweep::start(io_, [] {}); });
}

// Waits for the imports: one import for all workers of the node is faster than one by each.
void RoundRunner::start_when_warm(const membership::StartRound& round) {
  if (!warm_ || !warm_->is_loading()) return start_workers(round);
  spawn_later_ = round;
  warm_->when_loaded([this, weak = std::weak_ptr(warm_), since = Clock::now()] {
    if (weak.expired()) return;
    warming_ = Clock::now() - since;
    spawn_later();
  });
}

std::optional<std::size_t> RoundRunner::warm_helper_bytes() const {
  const pid_t pid = warm_ ? warm_->pid() : 0;
  return pid != 0 ? resident_bytes(pid) : std::nullopt;
}

void RoundRunner::leave() {
  parked_.reset();
  warm_.reset();
  if (sweep_) sweep_->abandon();
}

void RoundRunner::go_on(const membership::StartRound& round) {
  warming_ = {};
  reporter_.count_round(true);
  reporter_.round_began(round);
  if (const auto failure = workers_.go_on(round, kept_.go_on())) {
    return say_(event::WorkerFailed{round.round, *failure, Clock::now()});
  }
  reporter_.watch(round.round);
  all_run();
}

// ---- A spare's workers, which are started before they have a place ----

void RoundRunner::prewarm() {
  if (parked_ || options_.socket_parent.empty()) return;
  prewarm_later_ = warm_ && warm_->is_loading();
  if (prewarm_later_) {
    return warm_->when_loaded([this, weak = std::weak_ptr(warm_)] {
      if (!weak.expired() && prewarm_later_) prewarm();
    });
  }
  open_gpus();
  try {
    parked_ = workers_.park(
        warm_.get(), [this](const std::string& why) { parked_failed(why); },
        [this] { parked_gone(); });
  } catch (const Error& error) {
    parked_failed(error.what());
  }
}

void RoundRunner::parked_failed(const std::string& why) {
  tell_(LogLevel::kWarning,
        "--prewarm: " + why + "; this spare's workers start when it has a place");
  if (parked_) parked_->dismiss();
}

// Called when the dismissed workers are gone: their memory is free now, on GPUs too. Orders that
// came in the meantime have waited for this.
void RoundRunner::parked_gone() {
  parked_.reset();
  spawn_later();
}

void RoundRunner::spawn_later() {
  if (const auto round = std::exchange(spawn_later_, std::nullopt)) {
    start_workers(*round);
  } else if (std::exchange(stop_later_, false)) {
    workers_gone();
  }
}

// Gives the parked workers their places. False: not all of them wait.
bool RoundRunner::place_parked(const membership::StartRound& round) {
  if (!workers_.adopt(*parked_, round)) return false;
  parked_.reset();
  reporter_.watch(round.round);
  all_run();
  return true;
}

// ---- A round lasts and ends ----

void RoundRunner::all_run() {
  talk_.workers_run(workers_.pids());
  reporter_.workers_run(workers_.started());
  membership::WorkersRunning running{talk_.round()};
  running.warming_us = std::chrono::duration_cast<std::chrono::microseconds>(warming_).count();
  for (const auto& why : workers_.why_cold()) {
    if (!why) continue;
    running.num_warm += why->empty();
    if (running.cold.empty()) running.cold = *why;
  }
  say_(running);
}

void RoundRunner::worker_failed(membership::WorkerFailure failure, Clock::time_point at) {
  talk_.explain(failure);
  reporter_.worker_failed(failure);
  kept_.failed(failure);
  say_(event::WorkerFailed{talk_.round(), failure, at});
  kept_.give_up(concat("rank ", failure.global_rank, " has ended, too"));
}

void RoundRunner::keep_workers() {
  reporter_.unwatch();
  kept_.begin();
}

void RoundRunner::ask_to_leave(const action::RequestStop& request) {
  const int signal = request.signal_number != 0 ? request.signal_number : SIGUSR1;
  workers_.ask_to_leave(Clock::now() + request.notice, signal);
}

void RoundRunner::stop_workers(const action::StopWorkers& stop) {
  reporter_.unwatch();
  kept_.stop();
  if (parked_) {  // they are being dismissed for a round that is over already
    spawn_later_.reset();
    stop_later_ = true;
    return;
  }
  spawn_later_.reset();
  if (!workers_.stop(stop)) say_(event::WorkersGone{talk_.round()});
}

// Waits for the GPU memory of the ended workers, which must be free before others start.
void RoundRunner::workers_gone() {
  reporter_.workers_gone();
  talk_.close();
  const auto gone = [this, round = talk_.round()](const std::string& note) {
    if (!note.empty()) tell_(LogLevel::kWarning, note);
    say_(event::WorkersGone{round, talk_.pages().last_step()});
  };
  if (!gpus_) return gone("");
  gpus_->when_freed(kGpuMemoryLimit, gone);
}

void RoundRunner::hurry() {
  if (gpus_) gpus_->give_up();
}

// ---- Workers that may go on in place ----

KeptWorkers::KeptWorkers(WorkerTalk& talk, const RoundWorkers& workers, NodeReporter& reporter,
                         Say say)
    : talk_(talk), workers_(workers), reporter_(reporter), say_(std::move(say)) {}

void KeptWorkers::begin() {
  failure_.reset();
  state_ = State::kAsking;
  talk_.read_pending();
  look();
}

// A worker that has not offered recovery will never ask for it: most programs don't know of it.
void KeptWorkers::look() {
  if (state_ != State::kAsking) return;
  const AgentSocket* socket = talk_.socket();
  if (socket == nullptr) return give_up("they have no socket to ask on");
  if (workers_.are_asked_to_leave()) return give_up("they are asked to leave");
  if (workers_.any_ended_well()) return give_up("one has finished");
  const std::vector<pid_t> pids = workers_.pids();
  int count = 0, num_asking = 0;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] == 0) continue;
    const int local_rank = static_cast<int>(i);
    if (!socket->offers_recovery(local_rank)) {
      return give_up(concat("rank ", talk_.ranks().of(local_rank), " (pid ", pids[i],
                            ") has not offered it (Session::offer_recovery)"));
    }
    ++count;
    num_asking += socket->asks_to_recover(local_rank) ? 1 : 0;
  }
  if (count == 0) return give_up("none is left on this node");
  talk_.pages().tell_peer_lost();  // NCCL reports a lost peer only to some workers, or to none
  if (num_asking < count) return;  // this function is called again for the next one that asks
  state_ = State::kWaiting;
  reporter_.workers_gone();
  say_(event::WorkersKept{talk_.round(), count, talk_.pages().last_step()});
}

void KeptWorkers::give_up(const std::string& why) {
  if (state_ != State::kAsking) return;
  state_ = State::kNone;
  say_(event::WorkersNotKept{talk_.round(), why});
}

void KeptWorkers::stop() { state_ = State::kNone; }

void KeptWorkers::failed(const membership::WorkerFailure& failure) {
  if (state_ == State::kWaiting) failure_ = failure;
}

std::optional<membership::WorkerFailure> KeptWorkers::go_on() {
  state_ = State::kNone;
  return std::exchange(failure_, std::nullopt);
}

}  // namespace ddprun::agent
