// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/fleet.h"

#include <algorithm>
#include <utility>

#include "common/text.h"

namespace ddprun::bench {

using std::chrono::milliseconds;

namespace {

constexpr int kEnough = 1'000'000;
constexpr milliseconds kSoonestAgain{500}, kLatestAgain{5'000};
constexpr milliseconds kLastCall{2'000};  // what a round waits for those that were lost
constexpr milliseconds kStepTime{300};

bool is_random(const EmulationOptions& options) { return options.duration.count() > 0; }

}  // namespace

membership::JobSettings job_settings(const EmulationOptions& options) {
  membership::JobSettings settings;
  settings.max_nodes = options.num_agents;
  settings.min_nodes = options.min_agents > 0 ? options.min_agents
                       : is_random(options)   ? 1
                                              : options.num_agents;
  settings.spares = options.num_losses;
  settings.max_restarts =
      options.max_restarts.value_or(is_random(options) ? kEnough : options.num_failures);
  settings.max_node_losses =
      options.max_node_losses.value_or(is_random(options) ? kEnough : options.num_losses);
  settings.restart_on_join = is_random(options) && options.seed % 2 == 0;
  return settings;
}

Fleet::Fleet(const EmulationOptions& options, std::string run_id, bool steps,
             const std::vector<int>& slow, World& world, Random& random)
    : options_(options),
      run_id_(std::move(run_id)),
      steps_(steps),
      world_(world),
      random_(random),
      seats_(static_cast<std::size_t>(options.num_agents + options.num_losses)) {
  for (const int node : slow) seat(node).slow = true;
  for (Seat& each : seats_) {
    each.spawn_time = at_most(options_.max_spawn_time);
    each.stop_time = at_most(options_.max_spawn_time);
    if (!each.slow) continue;
    each.spawn_time += at_most(options_.keep_alive * 2);
    each.stop_time += at_most(options_.keep_alive);
  }
}

milliseconds Fleet::at_most(milliseconds most) {
  return std::chrono::duration_cast<milliseconds>(random_.between(milliseconds(0), most));
}

std::chrono::microseconds Fleet::lateness() {
  return random_.between(milliseconds(0), options_.keep_alive);
}

void Fleet::begin(int node) {
  Seat& here = seat(node);
  EmulatedNodeOptions agent;
  agent.index = node;
  agent.spawn_time = here.spawn_time;
  agent.stop_time = here.stop_time;
  if (steps_) agent.step_time = kStepTime;
  agent.machine.endpoints = {options_.endpoint};
  membership::Join& join = agent.machine.join;
  join.run_id = run_id_;
  join.instance = concat(run_id_, '/', node);
  if (here.num_begun > 0) join.instance += concat('/', here.num_begun);
  join.settings = job_settings(options_);
  join.timeouts.keep_alive = options_.keep_alive;
  join.timeouts.last_call = kLastCall;
  join.timeouts.max_restart_delay = milliseconds(0);
  join.num_workers = options_.num_workers_per_node;
  join.host = concat("node", node);
  join.program = "emulated";
  ++here.num_begun;
  world_.begin(std::move(agent));
}

void Fleet::begin_again(int node) {
  world_.at(world_.now() + random_.between(kSoonestAgain, kLatestAgain), [this, node] {
    if (wants_more_) begin(node);
  });
}

bool Fleet::came_in(int node) {
  Seat& here = seat(node);
  if (!std::exchange(here.in, true)) ++num_in_;
  return !std::exchange(here.was_in, true);
}

void Fleet::went_out(int node) {
  if (std::exchange(seat(node).in, false)) --num_in_;
}

}  // namespace ddprun::bench
