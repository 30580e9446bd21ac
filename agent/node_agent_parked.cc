// SPDX-License-Identifier: Apache-2.0
// A spare's workers, which are started before they have a place.
#include <utility>

#include "agent/node_agent.h"
#include "common/error.h"
#include "common/log_level.h"
#include "common/process_facts.h"
#include "common/text.h"

namespace ddprun::agent {

namespace event = membership::agent_event;

ParkedWorkers::ParkedWorkers(boost::asio::io_context& io, Console& console, ProgressPages& pages,
                             ParkedWorkersOptions options, ParkedWorkersEvents events)
    : events_(std::move(events)) {
  pages.begin_round(0, options.environment.num_workers);
  WorkerGroupEvents group;
  group.worker_failed = [this](const membership::WorkerFailure& failure, auto) {
    fail(concat("a worker (pid ", failure.pid, ") ended before its node had a place",
                failure.note.empty() ? "" : ": " + failure.note));
  };
  group.all_succeeded = [this] { fail("the program does not wait for a place"); };
  group.all_gone = [this] { events_.gone(); };
  options.group.socket_directory = AgentSocket::new_directory(options.socket_parent);
  const std::string directory = options.group.socket_directory;
  group_ =
      std::make_unique<WorkerGroup>(io, console, std::move(options.group), -1, std::move(group));
  group_->launch_warden();  // first, so that it removes the directory if we are killed
  socket_ = std::make_unique<AgentSocket>(io, pages, directory, std::move(events_.socket));
  std::vector<WorkerSpec> workers(static_cast<std::size_t>(options.environment.num_workers));
  for (std::size_t i = 0; i < workers.size(); ++i) {
    workers[i].local_rank = static_cast<int>(i);
    workers[i].global_rank = -1;
    workers[i].argv = worker_arguments(options.command, workers[i].local_rank);
    workers[i].environment =
        parked_environment(options.environment, workers[i].local_rank, socket_->path());
    started_with_.push_back(workers[i].environment);
  }
  group_->start(std::move(workers));
}

bool ParkedWorkers::place(const std::vector<std::vector<std::string>>& environments) {
  for (std::size_t i = 0; i < started_with_.size(); ++i) {
    if (failed_ || !socket_->waits_for_place(static_cast<int>(i))) return false;
  }
  for (std::size_t i = 0; i < started_with_.size(); ++i) {
    if (!socket_->assign(static_cast<int>(i),
                         environment_news(started_with_[i], environments.at(i)))) {
      return false;
    }
  }
  return true;
}

void ParkedWorkers::dismiss() { group_->stop(std::chrono::milliseconds{0}); }

void ParkedWorkers::fail(const std::string& why) {
  if (std::exchange(failed_, true)) return;
  events_.failed(why);
}

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

// The parked workers are dismissed: their memory is free now, on GPUs too. Orders that came in the
// meantime have waited for this.
void NodeAgent::parked_gone() {
  parked_.reset();
  if (const auto round = std::exchange(spawn_later_, std::nullopt)) {
    start_workers(*round);
    if (leave_before_) ask_to_leave();
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
