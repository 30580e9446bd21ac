// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_table.h"

#include <array>
#include <utility>

#include "common/parsed_number.h"
#include "common/suggest.h"
#include "common/text.h"
#include "launcher/num_workers.h"
#include "launcher/options/option_values.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using Limit = std::optional<milliseconds> agent::HangLimits::*;

constexpr double kMaxHangSeconds = 86'400 * 30;  // 30 days, longer than anybody waits

constexpr std::array<std::pair<std::string_view, Limit>, 6> kLimits = {{
    {"startup", &agent::HangLimits::startup},
    {"first", &agent::HangLimits::first},
    {"step", &agent::HangLimits::step},
    {"checkpoint", &agent::HangLimits::checkpoint},
    {"teardown", &agent::HangLimits::teardown},
    {"foreign", &agent::HangLimits::foreign},
}};

// nullopt: it isn't a time of more than 0 and at most 30 days.
std::optional<milliseconds> parse_time(std::string_view text) {
  const auto value = take_number<double>(text);
  if (!value) return std::nullopt;
  double factor = 1;
  if (text == "m") {
    factor = 60;
  } else if (text == "h") {
    factor = 3600;
  } else if (!text.empty() && text != "s") {
    return std::nullopt;
  }
  const double total = *value * factor;
  if (!(total >= 0.001 && total <= kMaxHangSeconds)) return std::nullopt;
  return milliseconds(static_cast<std::int64_t>(total * 1000));
}

// Parses "30s", or "step=30s,checkpoint=2h". Units are s, m, h; without one: seconds. Sets the
// limits that are named.
std::string parse_hang_timeout(std::string_view text, agent::HangLimits& limits) {
  std::string_view rest = text;
  do {
    const std::string_view item = take_until(rest, ",");
    const std::size_t equals = item.find('=');
    const std::string_view key = equals == std::string_view::npos ? "step" : item.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? item : item.substr(equals + 1);
    Limit limit = nullptr;
    std::vector<std::string> names;
    for (const auto& [name, member] : kLimits) {
      if (name == key) limit = member;
      names.emplace_back(name);
    }
    if (limit == nullptr) {
      return "unknown key \"" + std::string(key) + "\"" + did_you_mean(std::string(key), names);
    }
    limits.*limit = parse_time(value);
    if (!(limits.*limit)) {
      return "\"" + std::string(value) +
             "\" is no time of more than 0 and at most 30 days: 30s, 10m, 2h";
    }
  } while (!rest.empty());
  return {};
}

std::string set_nnodes(const std::string& value, LaunchConfig& config) {
  constexpr int kMost = 1'000'000'000;  // validate() checks the real limit
  const std::size_t colon = value.find(':');
  const auto least = parse_number(value.substr(0, colon), kMost);
  const auto most =
      colon == std::string::npos ? least : parse_number(value.substr(colon + 1), kMost);
  if (!least || !most || *least < 1 || *most < *least) {
    return "wants N or MIN:MAX with 1 ≤ MIN ≤ MAX";
  }
  config.min_nodes = *least;
  config.max_nodes = *most;
  return {};
}

std::string set_nproc(const std::string& value, LaunchConfig& config) {
  config.nproc_per_node = value;
  return check_num_workers(value);
}

std::string set_on_join(const std::string& value, LaunchConfig& config) {
  config.restart_on_join = value == "restart";
  return config.restart_on_join || value == "wait" ? "" : "must be wait or restart";
}

std::string set_recovery(const std::string& value, LaunchConfig& config) {
  const auto recovery = membership::recovery_named(value);
  if (!recovery) return "must be restart or inplace";
  config.recovery = *recovery;
  return {};
}

std::string set_hang_action(const std::string& value, LaunchConfig& config) {
  const auto action = value.empty() ? std::optional(membership::HangAction::kDefault)
                                    : membership::hang_action_named(value);
  if (!action) return "must be restart, report or off";
  config.hang_action = *action;
  return {};
}

}  // namespace

std::vector<Option> size_options() {
  constexpr char kGroup[] = "Size";
  using C = LaunchConfig;
  using T = membership::JobTimeouts;
  return {
      {"nnodes", "N|MIN:MAX", "1", "number of nodes", kGroup, set_nnodes},
      {"nproc-per-node", "N|auto|gpu|cpu", "1",
       "workers on this node; gpu: one per visible GPU; cpu: one per CPU", kGroup, set_nproc},
      {"max-restarts", "N", "0", "restarts of the job after a worker failed", kGroup,
       number_to(&C::max_restarts)},
      {"max-node-losses", "N", "16", "restarts of the job after a node was lost", kGroup,
       number_to(&C::max_node_losses)},
      {"max-restart-delay", "SECONDS", "30",
       "a crash loop's rounds wait 1, 2, 4, … seconds, at most this", kGroup,
       seconds_to(&T::max_restart_delay)},
      {"max-preemptions", "N", "16", "restarts of the job after a node was preempted", kGroup,
       number_to(&C::max_preemptions)},
      {"no-progress-restarts", "N", "0",
       "end after N rounds in a row without a finished step; 0: never", kGroup,
       number_to(&C::no_progress_restarts)},
      {"exclude-after", "N", "0",
       "a node whose workers were the first to fail N times is out; 0: never", kGroup,
       number_to(&C::exclude_after)},
      {"spares", "N", "0", "nodes beyond --nnodes that wait and replace lost ones", kGroup,
       number_to(&C::spares)},
      {"prewarm", "", "",
       "a spare's workers start at once and wait for their ranks (docs/agent-socket.md)", kGroup,
       switch_to(&C::prewarm)},
      {"on-join", "wait|restart", "wait",
       "a late node waits for the next round, or starts it at once", kGroup, set_on_join},
      {"recovery", "restart|inplace", "restart",
       "after a worker died the others are started again, or go on where they are "
       "(docs/inplace.md)",
       kGroup, set_recovery},
  };
}

std::vector<Option> time_options() {
  constexpr char kGroup[] = "Time limits";
  using T = membership::JobTimeouts;
  std::vector<Option> options = {
      {"rendezvous-timeout", "SECONDS", "600", "give up when not all nodes have joined", kGroup,
       positive_seconds_to(&T::join)},
      {"rendezvous-lost-timeout", "SECONDS", "60",
       "workers run on for this long without a rendezvous", kGroup,
       seconds_to(&T::rendezvous_lost)},
      {"shutdown-timeout", "SECONDS", "30", "from SIGTERM to SIGKILL", kGroup,
       seconds_to(&T::shutdown)},
  };
  for (const TimeLimit& limit : time_limits()) {
    options.push_back({limit.option, "SECONDS", limit.fallback, limit.help, kGroup,
                       positive_seconds_to(limit.field)});
  }
  return options;
}

const std::vector<TimeLimit>& time_limits() {
  using C = LaunchConfig;
  using T = membership::JobTimeouts;
  static const std::vector<TimeLimit> limits = {
      {"last-call-timeout", &T::last_call, "30",
       "MIN nodes are there: wait so long for MAX (between rounds 1 s)"},
      {"keep-alive-timeout", &T::keep_alive, "5",
       "a node of which nothing is heard for so long is lost"},
      {"keep-alive-interval", &C::keep_alive_interval, "",
       "between a node's pings (default: a third of the time-out)"},
      {"start-timeout", &T::start, "300", "until every worker of a round runs"},
      {"exit-barrier-timeout", &T::exit_barrier, "3600",
       "the first node has finished: wait so long for the others"},
      {"replacement-timeout", &T::replacement, "",
       "too few nodes are left: wait so long for others (default: end at once)"},
  };
  return limits;
}

std::vector<Option> progress_options() {
  constexpr char kHangs[] = "Ranks that make no progress";
  constexpr char kPreemption[] = "Preemption";
  using C = LaunchConfig;
  return {
      {"hang-timeout", "TIME|KEY=TIME,…", "",
       "no progress for so long is a hang: of steps, or for each of startup, first, step, "
       "checkpoint, teardown, foreign (programs that tell no steps, as a plain PyTorch script); "
       "30s, 10m, 2h (default: learnt from the first steps)",
       kHangs, parsed_to(&C::hang_limits, parse_hang_timeout)},
      {"hang-action", "restart|report|off", "",
       "what is done about it (default: restart where workers report their steps, else report)",
       kHangs, set_hang_action},
      {"time-limit", "DURATION|auto", "",
       "of this job: 90m, 1-12:00:00; auto: Slurm's. Workers are asked to leave before",
       kPreemption, parsed_to(&C::preemption, parse_time_limit)},
      {"preemption-signals", "NAMES|none", "SIGUSR1",
       "ddprun gets one when this node is about to be taken away", kPreemption,
       parsed_to(&C::preemption, parse_preemption_signals)},
      {"preemption-notice", "DURATION", "60", "from such a warning until the workers are stopped",
       kPreemption, parsed_to(&C::preemption, parse_preemption_notice)},
  };
}

}  // namespace ddprun::launcher
