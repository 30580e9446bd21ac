// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_groups.h"

#include "launcher/num_workers.h"
#include "launcher/options/parse_value.h"
#include "rendezvous/membership/job_settings.h"

namespace ddprun::launcher {
namespace {

std::string set_nnodes(const std::string& value, LaunchConfig& config) {
  constexpr int kMost = 1'000'000'000;  // validate() has the limit, and words it
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

}  // namespace

std::vector<Option> size_options() {
  constexpr char kGroup[] = "Size";
  using C = LaunchConfig;
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
       seconds_to(&C::max_restart_delay)},
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

}  // namespace ddprun::launcher
