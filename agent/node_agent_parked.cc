// SPDX-License-Identifier: Apache-2.0
// The part of NodeAgent about a spare's workers, which are started before they have a place.
#include <utility>

#include "agent/node_agent.h"
#include "common/error.h"
#include "common/process_facts.h"

namespace ddprun::agent {

namespace event = membership::agent_event;

void NodeAgent::prewarm() {
  if (parked_ || options_.socket_parent.empty()) return;
  if (!gpus_) gpus_ = GpuMemory::open(io_, helper_program("ddprun-gpus"));
  socket_.reset();
  ParkedWorkersOptions options{options_.workers, options_.environment, options_.command,
                               options_.socket_parent};
  try {
    if (options_.cgroups) parked_cgroup_ = options.group.cgroup = options_.cgroups->begin_round();
  } catch (const Error& error) {
    return parked_failed(error.what());
  }
  ParkedWorkersEvents events;
  events.socket = socket_events();
  events.failed = [this](const std::string& why) { parked_failed(why); };
  events.gone = [this] { parked_gone(); };
  try {
    parked_ = std::make_unique<ParkedWorkers>(io_, console_, pages_, std::move(options),
                                              std::move(events));
  } catch (const Error& error) {
    parked_failed(error.what());
  }
}

void NodeAgent::parked_failed(const std::string& why) {
  events_.tell(LogLevel::kWarning,
               "--prewarm: " + why + "; this spare's workers start when it has a place");
  if (parked_) parked_->dismiss();
}

// Dismissed. What came in the meantime has waited for this: their memory, on GPUs too, is free now.
void NodeAgent::parked_gone() {
  parked_.reset();
  if (const auto round = std::exchange(spawn_later_, std::nullopt)) {
    start_workers(*round);
    if (leave_before_) request_stop(*leave_before_);
  } else if (std::exchange(stop_later_, false)) {
    workers_gone(round_);
  }
}

// False: not all of them wait.
bool NodeAgent::place_parked(const membership::StartRound& round) {
  failure_details_.begin_round(round_, log_directory_, parked_->socket_directory(), parked_cgroup_);
  open_timers(parked_->socket_directory());
  std::vector<std::vector<std::string>> environments;
  for (WorkerSpec& worker : worker_specs(round)) {
    environments.push_back(std::move(worker.environment));
  }
  try {
    pages_.begin_round(round.round, options_.environment.num_workers);
  } catch (const Error& error) {
    events_.tell(LogLevel::kWarning, concat("--prewarm: ", error.what()));
    return false;
  }
  if (!parked_->place(environments)) {
    events_.tell(LogLevel::kWarning,
                 "--prewarm: not every worker waits for its place; they are started anew");
    return false;
  }
  socket_ = parked_->take_socket();
  workers_ = parked_->take_group();
  parked_.reset();
  first_steps_.clear();
  workers_->adopt(round.node_rank, round.first_global_rank, log_directory_,
                  group_events(round.round));
  watch(round);
  all_run(round.round);
  return true;
}

}  // namespace ddprun::agent
