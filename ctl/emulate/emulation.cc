// SPDX-License-Identifier: Apache-2.0
#include "ctl/emulate/emulation.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <random>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/random_id.h"
#include "ctl/emulate/daemon_process.h"
#include "ctl/emulate/emulated_agent.h"
#include "ctl/emulate/round_check.h"

namespace ddprun::ctl {

using std::chrono::milliseconds;

class Emulation::Impl {
 public:
  explicit Impl(EmulationOptions options)
      : options_(std::move(options)),
        io_(1),
        limit_(io_),
        random_(options_.seed),
        check_(options_.num_agents, options_.num_workers_per_node),
        run_id_("emulation-" + random_id()) {}

  EmulationTimes run() {
    bytes_before_ = daemon_bytes();
    for (int i = 0; i < num_agents_in_all(); ++i) make_agent(i);
    limit_.expires_after(options_.time_limit);
    limit_.async_wait([this](const boost::system::error_code& error) {
      if (!error) give_up();
    });
    began_ = Clock::now();
    join_more();
    io_.run();
    if (problem_) throw *problem_;
    return times_;
  }

 private:
  enum class Phase { kJoining, kRestarting, kEnding };

  int num_agents_in_all() const { return options_.num_agents + options_.num_losses; }

  milliseconds random_time() {
    const auto most = options_.max_spawn_time.count();
    return milliseconds(std::uniform_int_distribution<milliseconds::rep>(0, most)(random_));
  }

  void make_agent(int index) {
    EmulatedAgentOptions agent;
    agent.spawn_time = random_time();
    agent.stop_time = random_time();
    agent.machine.endpoint = options_.endpoint;
    membership::Join& join = agent.machine.join;
    join.run_id = run_id_;
    join.instance = concat(run_id_, "/", index);
    join.settings.min_nodes = join.settings.max_nodes = options_.num_agents;
    join.settings.spares = options_.num_losses;
    join.settings.max_restarts = options_.num_failures;
    join.settings.max_node_losses = options_.num_losses;
    join.timeouts.max_restart_delay = milliseconds(0);
    join.num_workers = options_.num_workers_per_node;
    join.host = concat("node", index);
    join.program = "emulated";
    EmulatedAgentEvents events;
    events.welcomed = [this] {
      --num_joining_;
      ++num_joined_;
      join_more();
      if (num_joined_ == num_agents_in_all() && std::exchange(awaits_spares_, false)) next_event();
    };
    events.started = [this, index](const membership::StartRound& start) { started(index, start); };
    events.running = [this] { running(); };
    events.told_to_stop = [this] { told(); };
    events.stopped = [this] { --num_live_; };
    events.exited = [this](const membership::agent_action::Exit& exit) { exited(exit); };
    agents_.push_back(std::make_unique<EmulatedAgent>(io_, std::move(agent), std::move(events)));
  }

  // Members first: with the last of them the round starts; the spares come after it.
  void join_more() {
    if (next_ == options_.num_agents && num_joined_ < options_.num_agents) return;
    while (next_ < num_agents_in_all() && num_joining_ < options_.max_joining) {
      if (next_ == options_.num_agents && num_joined_ < options_.num_agents) return;
      ++num_joining_;
      agents_[static_cast<std::size_t>(next_++)]->start();
    }
  }

  void started(int index, const membership::StartRound& start) {
    if (start.round != check_.round()) {
      num_running_ = 0;
      live_elsewhere_ = num_live_;
      members_.clear();
    }
    if (const auto wrong = check_.started(start, live_elsewhere_)) {
      return stop(Error(ErrorCode::kProtocol, concat(*wrong, " (seed ", options_.seed, ")")));
    }
    members_.push_back(index);
    ++num_live_;
    if (check_.complete() && phase_ == Phase::kJoining) times_.join = seconds_since(began_);
  }

  void running() {
    if (++num_running_ < options_.num_agents) return;
    if (phase_ == Phase::kRestarting) {
      (losing_ ? times_.loss_running : times_.failure_running).push_back(seconds_since(event_at_));
    }
    if (num_joined_ < num_agents_in_all()) {  // the spares are still on their way
      awaits_spares_ = true;
      return;
    }
    next_event();
  }

  void next_event() {
    if (phase_ == Phase::kJoining) {
      const std::size_t bytes = daemon_bytes();
      if (bytes > bytes_before_) {
        times_.daemon_bytes_per_agent =
            static_cast<double>(bytes - bytes_before_) / num_agents_in_all();
      }
    }
    num_told_ = 0;
    event_at_ = Clock::now();
    EmulatedAgent& victim = *agents_[static_cast<std::size_t>(
        members_[std::uniform_int_distribution<std::size_t>(0, members_.size() - 1)(random_)])];
    if (num_failures_ < options_.num_failures) {
      ++num_failures_;
      phase_ = Phase::kRestarting;
      losing_ = false;
      num_to_tell_ = options_.num_agents;
      victim.fail(1);
    } else if (num_losses_ < options_.num_losses) {
      ++num_losses_;
      phase_ = Phase::kRestarting;
      losing_ = true;
      num_to_tell_ = options_.num_agents - 1;
      --num_live_;
      victim.vanish();
    } else {
      phase_ = Phase::kEnding;
      const std::vector<int> members = members_;
      for (const int member : members) agents_[static_cast<std::size_t>(member)]->succeed();
    }
  }

  void told() {
    if (phase_ != Phase::kRestarting || ++num_told_ < num_to_tell_) return;
    (losing_ ? times_.loss_told : times_.failure_told).push_back(seconds_since(event_at_));
  }

  void exited(const membership::agent_action::Exit& exit) {
    if (exit.verdict.exit_code != 0 || phase_ != Phase::kEnding) {
      return stop(Error(ErrorCode::kProtocol,
                        concat("an agent left with code ", exit.verdict.exit_code, ": ",
                               exit.verdict.reason, " (seed ", options_.seed, ")")));
    }
    if (++num_exited_ < num_agents_in_all() - options_.num_losses) return;
    times_.end = seconds_since(event_at_);
    stop(std::nullopt);
  }

  void give_up() {
    const char* what = phase_ == Phase::kJoining  ? "joining"
                       : phase_ == Phase::kEnding ? "ending"
                                                  : "restarting";
    stop(Error(ErrorCode::kTimeout,
               concat("no end within ", options_.time_limit.count() / 1000, " s, while ", what,
                      ": round ", check_.round(), ", ", num_joined_, " joined, ", members_.size(),
                      " told to start, ", num_running_, " running, ", num_told_, " told to stop, ",
                      num_exited_, " left (seed ", options_.seed, ")")));
  }

  void stop(std::optional<Error> problem) {
    if (!problem_) problem_ = std::move(problem);
    io_.stop();
  }

  static double seconds_since(Clock::time_point at) {
    return std::chrono::duration<double>(Clock::now() - at).count();
  }
  std::size_t daemon_bytes() const {
    return options_.daemon_pid > 0 ? resident_bytes(options_.daemon_pid).value_or(0) : 0;
  }

  const EmulationOptions options_;
  boost::asio::io_context io_;
  boost::asio::steady_timer limit_;
  std::mt19937_64 random_;
  RoundCheck check_;
  const std::string run_id_;
  std::vector<std::unique_ptr<EmulatedAgent>> agents_;

  Phase phase_ = Phase::kJoining;
  bool losing_ = false;
  bool awaits_spares_ = false;
  Clock::time_point began_, event_at_;
  int next_ = 0, num_joining_ = 0, num_joined_ = 0;
  int num_live_ = 0;        // agents with workers of any round
  int live_elsewhere_ = 0;  // likewise, when the round began
  int num_running_ = 0, num_told_ = 0, num_to_tell_ = 0, num_exited_ = 0;
  int num_failures_ = 0, num_losses_ = 0;
  std::vector<int> members_;  // of the round
  std::size_t bytes_before_ = 0;
  EmulationTimes times_;
  std::optional<Error> problem_;
};

Emulation::Emulation(EmulationOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
Emulation::~Emulation() = default;
EmulationTimes Emulation::run() { return impl_->run(); }

}  // namespace ddprun::ctl
