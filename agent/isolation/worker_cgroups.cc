// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/worker_cgroups.h"

#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

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
constexpr std::chrono::milliseconds kLeafPatience{1'000};  // with what was killed, or is ending

// Whether it became empty. Each change of cgroup.events since the descriptor was read is told as
// POLLPRI.
bool becomes_empty(const CgroupTree& tree, const std::string& directory, Deadline deadline) {
  const UniqueFd events = tree.open(directory + "/cgroup.events");
  while (events) {
    char ignored;
    [[maybe_unused]] const ssize_t size = ::pread(events.get(), &ignored, 1, 0);
    if (is_empty_cgroup(tree, directory)) return true;
    if (deadline.expired()) return false;
    pollfd change{events.get(), POLLPRI, 0};
    ::poll(&change, 1, deadline.poll_timeout_ms());
  }
  return true;  // it is gone
}

}  // namespace

void enter_supervisor(CgroupTree& tree, const std::string& directory, pid_t process) {
  const std::string leaf = directory + "/" + kSupervisor, procs = leaf + "/cgroup.procs";
  const int made = tree.make(leaf);
  const bool is_there = made == 0 || made == EEXIST;
  const int error = is_there ? tree.write(procs, std::to_string(process)) : made;
  if (error == 0) return;
  if (made == 0) tree.remove(leaf);
  throw Error(ErrorCode::kSystem, concat("moving ddprun to ", procs, ": ", errno_text(error)));
}

WorkerCgroups::WorkerCgroups(std::shared_ptr<CgroupTree> tree, IsolationPlan plan, pid_t own)
    : tree_(std::move(tree)),
      plan_(std::move(plan)),
      own_(own),
      supervisor_(plan_.place.directory + "/" + kSupervisor) {
  end_leftovers();
  try {
    if (plan_.place.needs_supervisor && !plan_.controllers.empty()) {
      enter_supervisor(*tree_, plan_.place.directory, own_);
      moved_ = true;
    }
    enable_controllers();
  } catch (const Error&) {
    close();
    throw;
  }
}

// Others may have taken them back since.
void WorkerCgroups::enable_controllers() {
  const std::string& directory = plan_.place.directory;
  const std::string file = directory + "/cgroup.subtree_control";
  const auto known = words_of(tree_->read(file).value_or(""));
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
    if (!end_round(round)) {
      log_warning("an earlier job's processes can't be killed: ",
                  to_text(*tree_, processes_in(*tree_, round)), " (", round, ")");
    }
  }
}

bool WorkerCgroups::end_round(const std::string& round) {
  tree_->write(round + "/cgroup.kill", "1");
  const bool is_empty = becomes_empty(*tree_, round, Deadline::after(kLeafPatience));
  remove_cgroups(*tree_, round);
  return is_empty;
}

std::shared_ptr<RoundCgroup> WorkerCgroups::begin_round() {
  enable_controllers();
  const std::string& directory = plan_.place.directory;
  const auto there = tree_->children(directory);
  std::string name;
  do {
    name = concat(kRoundPrefix, own_, "-", ++num_rounds_);
  } while (std::find(there.begin(), there.end(), name) != there.end());
  auto round = std::make_shared<RoundCgroup>(tree_, directory + "/" + name, plan_);
  rounds_.push_back(round->directory());
  return round;
}

// What a ddprun in a supervisor's leaf has enabled stays: another one there may be about to use it.
void WorkerCgroups::close() {
  if (!moved_) return;
  const std::string& directory = plan_.place.directory;
  // A warden may be at one still: nobody waits for that of a spare's workers.
  for (const std::string& round : std::exchange(rounds_, {})) end_round(round);
  auto others = tree_->children(directory);
  std::erase(others, kSupervisor);
  // Helpers that are about to end. First, or one that ends in between would be a stranger.
  auto family = processes_below(*tree_, own_);
  family.push_back(own_);
  const auto pids = processes_in(*tree_, supervisor_);
  const bool is_ours = std::all_of(pids.begin(), pids.end(), [&](pid_t pid) {
    return std::find(family.begin(), family.end(), pid) != family.end();
  });
  if (!others.empty() || !is_ours) return;
  for (const std::string& controller : std::exchange(enabled_, {})) {
    tree_->write(directory + "/cgroup.subtree_control", "-" + controller);
  }
  moved_ = false;
  for (const pid_t pid : pids) tree_->write(directory + "/cgroup.procs", std::to_string(pid));
  // The kernel moves no process and no thread that is ending, and says nothing of it.
  becomes_empty(*tree_, supervisor_, Deadline::after(kLeafPatience));
  remove_cgroups(*tree_, supervisor_);
}

}  // namespace ddprun::agent
