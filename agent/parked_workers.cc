// SPDX-License-Identifier: Apache-2.0
#include "agent/parked_workers.h"

#include <chrono>

#include "agent/observe/observer.h"
#include "common/error.h"
#include "common/text.h"

namespace ddprun::agent {

ParkedWorkers::ParkedWorkers(boost::asio::io_context& io, Console& console, ProgressPages& pages,
                             ParkedWorkersOptions options, ParkedWorkersEvents events)
    : events_(std::move(events)), cgroup_(options.group.cgroup) {
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
  group_->launch_warden();  // first, so that it removes the directory if this process is killed
  socket_ = std::make_unique<AgentSocket>(io, pages, directory, std::move(events_.socket));
  std::string observer;
  try {
    if (options.environment.observes) observer = put_observer(socket_->directory());
  } catch (const Error&) {  // the workers run as well without it
  }
  std::vector<WorkerSpec> workers(static_cast<std::size_t>(options.environment.num_workers));
  for (std::size_t i = 0; i < workers.size(); ++i) {
    workers[i].local_rank = static_cast<int>(i);
    workers[i].global_rank = -1;
    workers[i].argv = worker_arguments(options.command, workers[i].local_rank);
    workers[i].environment =
        parked_environment(options.environment, workers[i].local_rank, socket_->path(), observer);
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

}  // namespace ddprun::agent
