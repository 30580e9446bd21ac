// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_groups.h"

#include "launcher/options/option_table.h"

namespace ddprun::launcher {
namespace {

std::string set_rendezvous_timeout(const std::string& value, LaunchConfig& config) {
  return positive_seconds_to(&LaunchConfig::rendezvous_timeout)(value, config);
}

}  // namespace

std::vector<Option> time_options() {
  constexpr char kGroup[] = "Time limits";
  using C = LaunchConfig;
  std::vector<Option> options = {
      {"rendezvous-timeout", "SECONDS", "600", "give up when not all nodes have joined", kGroup,
       set_rendezvous_timeout},
      {"rendezvous-lost-timeout", "SECONDS", "60",
       "workers run on for this long without a rendezvous", kGroup,
       seconds_to(&C::rendezvous_lost_timeout)},
      {"shutdown-timeout", "SECONDS", "30", "from SIGTERM to SIGKILL", kGroup,
       seconds_to(&C::shutdown_timeout)},
  };
  for (const TimeLimit& limit : time_limits()) {
    options.push_back({limit.option, "SECONDS", limit.fallback, limit.help, kGroup,
                       positive_seconds_to(limit.field)});
  }
  return options;
}

const std::vector<TimeLimit>& time_limits() {
  using C = LaunchConfig;
  static const std::vector<TimeLimit> limits = {
      {"last-call-timeout", &C::last_call_timeout, "30",
       "MIN nodes are there: wait so long for MAX (between rounds 1 s)"},
      {"keep-alive-timeout", &C::keep_alive_timeout, "5",
       "a node of which nothing is heard for so long is lost"},
      {"keep-alive-interval", &C::keep_alive_interval, "",
       "between a node's pings (default: a third of the time-out)"},
      {"start-timeout", &C::start_timeout, "300", "until every worker of a round runs"},
      {"exit-barrier-timeout", &C::exit_barrier_timeout, "3600",
       "the first node has finished: wait so long for the others"},
      {"replacement-timeout", &C::replacement_timeout, "",
       "too few nodes are left: wait so long for others (default: end at once)"},
  };
  return limits;
}

}  // namespace ddprun::launcher
