// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/worker_cgroups.h"

#include <poll.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "agent/isolation/remaining_processes.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

constexpr char kRoundPrefix[] = "ddprun-round-";
constexpr std::chrono::milliseconds kLeftoverPatience{1'000};

// Whether it became empty: each change of cgroup.events is told as POLLPRI.
bool becomes_empty(const CgroupTree& tree, const std::string& directory, Deadline deadline) {
  const UniqueFd events = tree.open(directory + "/cgroup.events");
  while (events) {
    if (processes_in(tree, directory).empty()) return true;
    if (deadline.expired()) return false;
    pollfd change{events.get(), POLLPRI, 0};
    ::poll(&change, 1, deadline.poll_timeout_ms());
  }
  return true;  // it is gone
}

}  // namespace

WorkerCgroups::WorkerCgroups(std::shared_ptr<CgroupTree> tree, IsolationPlan plan, pid_t own)
    : tree_(std::move(tree)),
      plan_(std::move(plan)),
      own_(own),
      supervisor_(plan_.place.directory + "/" + kSupervisor) {
  end_leftovers();
  try {
    if (plan_.place.needs_supervisor && !plan_.controllers.empty()) enter_supervisor();
    enable_controllers();
  } catch (const Error&) {
    close();
    throw;
  }
}

void WorkerCgroups::enter_supervisor() {
  const int made = tree_->make(supervisor_);
  const std::string procs = supervisor_ + "/cgroup.procs";
  const int error = made != 0 && made != EEXIST ? made : tree_->write(procs, std::to_string(own_));
  if (error != 0) {
    if (made == 0) tree_->remove(supervisor_);
    throw Error(ErrorCode::kSystem, concat("moving ddprun to ", procs, ": ", errno_text(error)));
  }
  moved_ = true;
}

void WorkerCgroups::enable_controllers() {
  const std::string& directory = plan_.place.directory;
  const std::string file = directory + "/cgroup.subtree_control";
  const auto& known = plan_.place.enabled;
  for (const std::string& controller : plan_.controllers) {
    if (std::find(known.begin(), known.end(), controller) != known.end()) continue;
    if (const int error = tree_->write(file, "+" + controller); error != 0) {
      std::string why = errno_text(error);
      const std::string who = to_text(*tree_, processes_directly_in(*tree_, directory));
      if (error == EBUSY && !who.empty()) why += ": these are in it: " + who;
      throw Error(ErrorCode::kSystem, concat("enabling ", controller, " in ", file, ": ", why));
    }
    enabled_.push_back(controller);
  }
}

// Whose warden and ddprun were killed together. Who holds the lock lives.
void WorkerCgroups::end_leftovers() {
  const std::string& directory = plan_.place.directory;
  for (const std::string& name : tree_->children(directory)) {
    if (!name.starts_with(kRoundPrefix)) continue;
    const std::string round = directory + "/" + name;
    const UniqueFd fd = tree_->open(round);
    if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;
    tree_->write(round + "/cgroup.kill", "1");
    if (!becomes_empty(*tree_, round, Deadline::after(kLeftoverPatience))) {
      log_warning("an earlier job's processes can't be killed: ",
                  to_text(*tree_, processes_in(*tree_, round)), " (", round, ")");
    }
    remove_cgroups(*tree_, round);
  }
}

std::shared_ptr<RoundCgroup> WorkerCgroups::begin_round() {
  const std::string& directory = plan_.place.directory;
  const auto there = tree_->children(directory);
  std::string name;
  do {
    name = concat(kRoundPrefix, own_, "-", ++num_rounds_);
  } while (std::find(there.begin(), there.end(), name) != there.end());
  return std::make_shared<RoundCgroup>(tree_, directory + "/" + name, plan_);
}

void WorkerCgroups::close() {
  const std::string& directory = plan_.place.directory;
  auto others = tree_->children(directory);
  std::erase(others, kSupervisor);
  const auto pids = moved_ ? processes_in(*tree_, supervisor_) : std::vector<pid_t>();
  const bool is_ours =
      std::all_of(pids.begin(), pids.end(), [&](pid_t pid) { return pid == own_; });
  if (!others.empty() || !is_ours) return;
  for (const std::string& controller : std::exchange(enabled_, {})) {
    tree_->write(directory + "/cgroup.subtree_control", "-" + controller);
  }
  if (!std::exchange(moved_, false)) return;
  tree_->write(directory + "/cgroup.procs", std::to_string(own_));
  remove_cgroups(*tree_, supervisor_);
}

}  // namespace ddprun::agent
