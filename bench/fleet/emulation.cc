// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/emulation.h"

#include <algorithm>
#include <utility>

#include "bench/fleet/fault_plan.h"
#include "bench/fleet/fleet.h"
#include "bench/fleet/real_world.h"
#include "bench/fleet/round_check.h"
#include "bench/fleet/storm.h"
#include "common/error.h"
#include "common/process_facts.h"
#include "common/random_id.h"
#include "common/text.h"

namespace ddprun::bench {

using std::chrono::milliseconds;

namespace {

// After the last fault: all that follows from it has happened, even an agent that came again.
constexpr milliseconds kCalm{10'000};
constexpr milliseconds kAftermath{
    75'000};  // so long it may notice what was wrong: the agent's 60 s
constexpr milliseconds kComesAgain{6'000};     // refused, and begun again, after its trouble
constexpr milliseconds kSettleLimit{600'000};  // then a round must run on all its nodes
constexpr milliseconds kQuiet{3'000};          // nothing may happen, unless something waits for it

bool lasts(const EmulationOptions& options) { return options.duration.count() > 0; }

std::vector<Fault> planned(const EmulationOptions& options, bool is_virtual,
                           const std::vector<int>& slow, Random& random) {
  FaultOptions faults;
  faults.num_nodes = options.num_agents + options.num_losses;
  faults.num_kills = options.num_kills;
  faults.num_partitions = options.num_partitions;
  faults.slow_nodes = slow;
  faults.duration = options.duration;
  faults.keep_alive = options.keep_alive;
  faults.late_messages = faults.stand_still = is_virtual;
  return lasts(options) ? plan_faults(faults, random) : std::vector<Fault>();
}

}  // namespace

class Emulation::Impl final : public NodeObserver {
 public:
  Impl(EmulationOptions options, const MakeWorld& make_virtual)
      : options_(std::move(options)),
        is_virtual_(make_virtual != nullptr),
        random_(options_.seed),
        slow_(draw_nodes(options_.num_slow_nodes, options_.num_agents, random_)),
        plan_(planned(options_, is_virtual_, slow_, random_)),
        world_(make_world(make_virtual)),
        fleet_(options_, is_virtual_ ? "emulation" : "emulation-" + random_id(), is_virtual_, slow_,
               *world_, random_),
        storm_(plan_, *world_, fleet_, log_, options_.keep_alive + kComesAgain),
        check_({job_settings(options_).min_nodes, options_.num_agents,
                options_.num_workers_per_node, !lasts(options_)}) {}

  EmulationResult run() {
    bytes_before_ = daemon_bytes();
    began_ = world_->now();
    log_.begin(began_);
    world_->at(began_ + options_.time_limit, [this] { give_up(); });
    join_more();
    world_->run();
    if (out_of_time_) throw Error(ErrorCode::kTimeout, *out_of_time_);
    result_.num_rounds = check_.round();
    result_.num_faults = storm_.num_faults();
    result_.seconds = seconds_since(began_);
    result_.num_events = log_.num_events();
    result_.digest = log_.digest();
    return std::move(result_);
  }

 private:
  enum class Phase {
    kJoining,
    kRestarting,  // after one failure or loss
    kStorm,       // random faults
    kSettling,    // they are over
    kQuiet,
    kEnding,
  };

  std::unique_ptr<World> make_world(const MakeWorld& make_virtual) {
    WorldPlan plan;
    for (int i = 0; i < options_.num_agents + options_.num_losses; ++i) {
      plan.latencies.push_back(random_.between(std::chrono::microseconds(50), milliseconds(1)));
    }
    for (const int node : slow_) {
      plan.latencies[static_cast<std::size_t>(node)] =
          random_.between(milliseconds(20), std::min(options_.keep_alive / 15, milliseconds(300)));
    }
    plan.slow = slow_;
    for (const Fault& fault : plan_) {
      if (fault.kind != Fault::Kind::kPartition) continue;
      plan.cut.insert(plan.cut.end(), fault.nodes.begin(), fault.nodes.end());
    }
    plan.observer = this;
    plan.log = &log_;
    plan.violated = [this](const std::string& what) { violated(what); };
    return is_virtual_ ? make_virtual(plan) : std::make_unique<RealWorld>(options_.endpoint, plan);
  }

  // ---- joining ----

  // Members first: with the last of them the round starts; the spares come after it.
  void join_more() {
    while (next_ < fleet_.size() && num_joining_ < options_.max_joining) {
      if (next_ == options_.num_agents && num_joined_ < options_.num_agents) return;
      const int node = next_++;
      if (!fleet_.is_slow(node)) {
        ++num_joining_;
        fleet_.begin(node);
        continue;
      }
      world_->at(world_->now() + fleet_.lateness(), [this, node] {
        ++num_joining_;
        fleet_.begin(node);
      });
    }
  }

  void welcomed(int node) override {
    log_.note(world_->now(), node, "welcome");
    // The job has ended: it would wait for another one of that name.
    if (verdict_ && !fleet_.is_in(node)) return world_->kill(node, false);
    if (fleet_.came_in(node)) {
      --num_joining_;
      ++num_joined_;
      join_more();
      if (num_joined_ == fleet_.size() && std::exchange(awaits_spares_, false)) next_event();
    }
    if (phase_ == Phase::kSettling) settle();
  }

  // ---- rounds ----

  void started(int node, const membership::StartRound& start) override {
    log_.note(world_->now(), node, "starts its workers", start.round);
    if (start.round != check_.round()) {
      num_running_ = num_emptied_ = 0;
      members_.clear();
      say_late_after_start();
    }
    if (const auto wrong = check_.started(start)) return violated(*wrong);
    members_.push_back(node);
    if (check_.complete() && phase_ == Phase::kJoining) result_.times.join = seconds_since(began_);
  }

  // Messages of old rounds, just when nodes start.
  void say_late_after_start() {
    if (!is_virtual_ || !lasts(options_)) return;
    for (int i = 0; i < 3; ++i) {
      const int node = random_.index(fleet_.size());
      const std::uint64_t draw = random_.next();
      world_->at(world_->now() + random_.between(milliseconds(0), milliseconds(20)),
                 [this, node, draw] { world_->say_late(node, draw % 2 == 0, draw / 2); });
    }
  }

  void running(int node, std::uint64_t round) override {
    log_.note(world_->now(), node, "all its workers run", round);
    if (round != check_.round()) return;
    ++num_running_;
    if (all_run()) round_runs();
  }

  bool all_run() const {
    return check_.num_nodes() > 0 && num_running_ == check_.num_nodes() && num_emptied_ == 0;
  }

  void round_runs() {
    switch (phase_) {
      case Phase::kRestarting:
        (losing_ ? result_.times.loss_running : result_.times.failure_running)
            .push_back(seconds_since(event_at_));
        [[fallthrough]];
      case Phase::kJoining:
        awaits_spares_ = num_joined_ < fleet_.size();  // they are still on their way
        if (!awaits_spares_) next_event();
        return;
      case Phase::kStorm:
      case Phase::kSettling:
        if (stopped_at_) result_.times.restart.push_back(seconds_since(*stopped_at_));
        stopped_at_.reset();
        if (phase_ == Phase::kSettling) settle();
        return;
      case Phase::kQuiet:
        return;
      case Phase::kEnding:
        return finish();
    }
  }

  void told_to_stop(int node, std::uint64_t round) override {
    log_.note(world_->now(), node, "stops its workers", round);
    if (phase_ == Phase::kRestarting && ++num_told_ == num_to_tell_) {
      (losing_ ? result_.times.loss_told : result_.times.failure_told)
          .push_back(seconds_since(event_at_));
    }
    if (!stopped_at_) stopped_at_ = world_->now();
    if (phase_ == Phase::kQuiet && !job_settings(options_).restart_on_join) {
      violated(concat("node ", node, " stops round ", round, ", to which nothing has happened"));
    }
  }

  void emptied(int node, std::uint64_t round) override {
    log_.note(world_->now(), node, "no worker is left", round);
    check_.emptied(round);
    if (round == check_.round()) ++num_emptied_;
  }

  void misled(int node, const char* effect) override {
    violated(concat("a late message of an old round to node ", node, ": ", effect));
  }

  // ---- what is measured: one failure or loss after the other ----

  void next_event() {
    if (phase_ == Phase::kJoining) {
      const std::size_t bytes = daemon_bytes();
      if (bytes > bytes_before_) {
        result_.times.daemon_bytes_per_agent =
            static_cast<double>(bytes - bytes_before_) / fleet_.size();
      }
    }
    num_told_ = 0;
    event_at_ = world_->now();
    const int victim = members_[random_.below(members_.size())];
    losing_ = num_failures_ == options_.num_failures;
    if (losing_ && num_losses_ == options_.num_losses) return begin_storm();
    phase_ = Phase::kRestarting;
    num_to_tell_ = static_cast<int>(members_.size()) - (losing_ ? 1 : 0);
    if (!losing_) {
      ++num_failures_;
      world_->node(victim)->fail(1);
      return;
    }
    ++num_losses_;
    fleet_.went_out(victim);
    world_->kill(victim, false);
    if (lasts(options_)) fleet_.begin_again(victim);
  }

  // ---- random faults ----

  void begin_storm() {
    if (!lasts(options_)) {
      phase_ = Phase::kEnding;
      return finish();
    }
    phase_ = Phase::kStorm;
    stopped_at_.reset();
    storm_.begin();
    world_->at(world_->now() + options_.duration, [this] {
      log_.note(world_->now(), -1, "no more faults from now on");
      storm_.end();
      phase_ = Phase::kSettling;
      world_->at(world_->now() + kCalm + 2 * options_.keep_alive, [this] {
        calm_ = true;
        settle();
      });
      world_->at(world_->now() + kSettleLimit, [this] {
        if (phase_ == Phase::kSettling) {
          violated(concat("no round runs everywhere ", kSettleLimit.count() / 1000,
                          " s after the last fault: ", num_running_, " of ", check_.num_nodes(),
                          " nodes run round ", check_.round(), ", ", fleet_.num_in(), " of ",
                          fleet_.size(), " are there"));
        }
      });
    });
  }

  void settle() {
    if (!calm_ || !all_run() || fleet_.num_in() < fleet_.size()) return;
    phase_ = Phase::kQuiet;
    world_->at(world_->now() + kQuiet, [this] {
      phase_ = Phase::kEnding;
      if (all_run()) finish();
    });
    for (int i = 0; is_virtual_ && i < 20; ++i) {
      world_->say_late(random_.index(fleet_.size()), i % 2 == 0, random_.next());
    }
  }

  // ---- the end ----

  void finish() {
    event_at_ = world_->now();
    fleet_.want_no_more();
    const std::vector<int> members = members_;
    for (const int member : members) world_->node(member)->succeed();
  }

  void told_the_end(int node, int code) override {
    log_.note(world_->now(), node, "hears the end of the job");
    if (!verdict_) {
      verdict_ = code;
      fleet_.want_no_more();
    } else if (*verdict_ != code) {
      violated(concat("node ", node, " is told the end with code ", code, ", others with code ",
                      *verdict_));
    }
  }

  void exited(int node, const membership::agent_action::Exit& exit) override {
    log_.note(world_->now(), node, "its agent exits",
              static_cast<std::uint64_t>(exit.verdict.exit_code));
    fleet_.went_out(node);
    const int code = exit.verdict.exit_code;
    if (exit.local) {  // it was given up, and couldn't come back
      const bool is_expected = code != 2 && storm_.troubled_since(node, world_->now() - kAftermath);
      if (!is_expected) return left_wrongly(node, exit);
      if (phase_ != Phase::kEnding) fleet_.begin_again(node);
    } else if (phase_ != Phase::kEnding || code != 0) {
      const bool may_end =
          options_.max_restarts || options_.max_node_losses || options_.min_agents > 0;
      if (!may_end || !lasts(options_)) return left_wrongly(node, exit);
      if (!result_.end) end_early(exit.verdict);
    }
    if (!verdict_ || fleet_.num_in() > 0) return;
    result_.times.end = seconds_since(event_at_);
    world_->stop();
  }

  void end_early(const membership::JobEnd& verdict) {
    result_.end = concat("code ", verdict.exit_code, ": ", verdict.reason);
    phase_ = Phase::kEnding;
    event_at_ = world_->now();
    storm_.end();
  }

  void left_wrongly(int node, const membership::agent_action::Exit& exit) {
    violated(concat("node ", node, " left with code ", exit.verdict.exit_code, ": ",
                    exit.verdict.reason));
  }

  void give_up() {
    const char* what = phase_ == Phase::kJoining  ? "joining"
                       : phase_ == Phase::kEnding ? "ending"
                                                  : "restarting";
    const std::string text =
        concat("no end within ", options_.time_limit.count() / 1000, " s, while ", what, ": round ",
               check_.round(), ", ", num_joined_, " joined, ", fleet_.num_in(), " there, ",
               members_.size(), " told to start, ", num_running_, " running, ", num_told_,
               " told to stop");
    if (is_virtual_) return violated(text);
    out_of_time_ = concat(text, " (seed ", options_.seed, ")");
    world_->stop();
  }

  void violated(const std::string& what) {
    if (result_.violation) return;
    result_.violation = what;
    result_.last_events = log_.last();
    world_->stop();
  }

  double seconds_since(Clock::time_point at) const {
    return std::chrono::duration<double>(world_->now() - at).count();
  }
  std::size_t daemon_bytes() const {
    return options_.daemon_pid > 0 ? resident_bytes(options_.daemon_pid).value_or(0) : 0;
  }

  const EmulationOptions options_;
  const bool is_virtual_;
  Random random_;
  const std::vector<int> slow_;
  const std::vector<Fault> plan_;
  EventLog log_;
  const std::unique_ptr<World> world_;
  Fleet fleet_;
  Storm storm_;
  RoundCheck check_;
  EmulationResult result_;
  std::optional<std::string> out_of_time_;

  Phase phase_ = Phase::kJoining;
  bool losing_ = false, awaits_spares_ = false;
  bool calm_ = false;  // what the last fault led to has happened
  Clock::time_point began_, event_at_;
  std::optional<Clock::time_point> stopped_at_;  // the last round, first heard
  int next_ = 0, num_joining_ = 0, num_joined_ = 0;
  int num_running_ = 0, num_emptied_ = 0;  // nodes of the last round
  int num_told_ = 0, num_to_tell_ = 0;
  int num_failures_ = 0, num_losses_ = 0;
  std::optional<int> verdict_;  // the job's end, as the first agent was told
  std::vector<int> members_;    // of the last round
  std::size_t bytes_before_ = 0;
};

Emulation::Emulation(EmulationOptions options) : Emulation(std::move(options), nullptr) {}
Emulation::Emulation(EmulationOptions options, const MakeWorld& make_virtual)
    : impl_(std::make_unique<Impl>(std::move(options), make_virtual)) {}
Emulation::~Emulation() = default;
EmulationResult Emulation::run() { return impl_->run(); }

}  // namespace ddprun::bench
