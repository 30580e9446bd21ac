// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/round_cgroup.h"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

constexpr int kDeepestCgroup = 32;

bool remove_below(CgroupTree& tree, const std::string& directory, int depth) {
  if (depth < kDeepestCgroup) {
    for (const std::string& name : tree.children(directory)) {
      remove_below(tree, directory + "/" + name, depth + 1);
    }
  }
  const int error = tree.remove(directory);
  return error == 0 || error == ENOENT;
}

void must(int error, const std::string& what) {
  if (error != 0) throw Error(ErrorCode::kSystem, concat(what, ": ", errno_text(error)));
}

// "populated 1" of a cgroup.events, "max 3" of a pids.events.
std::uint64_t value_of(const std::string& text, const std::string& name) {
  std::istringstream in(text);
  std::string word;
  std::uint64_t value = 0;
  while (in >> word >> value) {
    if (word == name) return value;
  }
  return 0;
}

}  // namespace

bool is_empty_cgroup(const CgroupTree& tree, const std::string& directory) {
  const auto events = tree.read(directory + "/cgroup.events");
  return !events || value_of(*events, "populated") == 0;
}

bool remove_cgroups(CgroupTree& tree, const std::string& directory) {
  return remove_below(tree, directory, 0);
}

RoundCgroup::RoundCgroup(std::shared_ptr<CgroupTree> tree, std::string directory,
                         const IsolationPlan& plan)
    : tree_(std::move(tree)), directory_(std::move(directory)) {
  must(tree_->make(directory_), "making the cgroup " + directory_);
  try {
    fill(plan);
  } catch (...) {
    leaves_.clear();
    remove();
    throw;
  }
}

RoundCgroup::~RoundCgroup() { remove(); }

void RoundCgroup::fill(const IsolationPlan& plan) {
  fd_ = tree_->open(directory_);
  if (!fd_) throw_system_error("opening the cgroup " + directory_, errno);
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    throw_system_error("locking the cgroup " + directory_, errno);
  }
  for (const std::string& controller : plan.controllers) {
    must(tree_->write(directory_ + "/cgroup.subtree_control", "+" + controller),
         concat("enabling ", controller, " in ", directory_, "/cgroup.subtree_control"));
  }
  const auto& needed = plan.controllers;
  counts_memory_ = std::find(needed.begin(), needed.end(), "memory") != needed.end();
  for (std::size_t rank = 0; rank < plan.workers.size(); ++rank) {
    const std::string directory = leaf(static_cast<int>(rank));
    must(tree_->make(directory), "making the cgroup " + directory);
    for (const CgroupSetting& setting : plan.workers[rank]) set(directory, setting);
    leaves_.push_back(tree_->open(directory));
    if (!leaves_.back()) throw_system_error("opening the cgroup " + directory, errno);
  }
}

void RoundCgroup::set(const std::string& directory, const CgroupSetting& setting) {
  const std::string file = directory + "/" + setting.file;
  const int error = tree_->write(file, setting.value);
  if (error == ENOENT && setting.may_lack) return;
  must(error, concat("writing \"", setting.value, "\" to ", file));
  const std::string shown = setting.seen_in.empty() ? file : directory + "/" + setting.seen_in;
  int read_error = 0;
  const auto seen = tree_->read(shown, &read_error);
  if (!seen) must(read_error, "reading back " + shown);
  if (const std::string other = difference(setting, *seen); !other.empty()) {
    throw Error(ErrorCode::kSystem,
                concat(shown, " ", other, ": the kernel did not take this limit"));
  }
}

std::string RoundCgroup::leaf(int local_rank) const {
  return concat(directory_, "/worker-", local_rank);
}

int RoundCgroup::worker_fd(int local_rank) const {
  return leaves_.at(static_cast<std::size_t>(local_rank)).get();
}

void RoundCgroup::kill() { tree_->write(directory_ + "/cgroup.kill", "1"); }

bool RoundCgroup::is_empty() const { return is_empty_cgroup(*tree_, directory_); }

bool RoundCgroup::remove() { return remove_cgroups(*tree_, directory_); }

WorkerMemory RoundCgroup::memory_of(int local_rank) const {
  const std::string directory = leaf(local_rank);
  const auto text = [&](const char* file) {
    return tree_->read(directory + "/" + file).value_or("");
  };
  WorkerMemory memory =
      parse_worker_memory(text("memory.events"), text("memory.peak"), text("memory.max"));
  memory.events_file = directory + "/memory.events";
  return memory;
}

std::uint64_t RoundCgroup::pids_refused(int local_rank) const {
  return value_of(tree_->read(leaf(local_rank) + "/pids.events").value_or(""), "max");
}

}  // namespace ddprun::agent
