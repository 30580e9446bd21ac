// SPDX-License-Identifier: Apache-2.0
// The cgroup of one round's workers on this node: a leaf for each, with its limits, which were read
// back. docs/isolation.md has the layout.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/isolation/cgroup_tree.h"
#include "agent/isolation/isolation_plan.h"
#include "agent/isolation/worker_memory.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

class RoundCgroup {
 public:
  // Makes `directory` and all that is in it. Throws Error that names the file, what was wanted and
  // what was seen; nothing is left then.
  RoundCgroup(std::shared_ptr<CgroupTree> tree, std::string directory, const IsolationPlan& plan);
  ~RoundCgroup();  // as remove()
  RoundCgroup(const RoundCgroup&) = delete;
  RoundCgroup& operator=(const RoundCgroup&) = delete;

  const std::string& directory() const { return directory_; }
  std::string name() const { return directory_.substr(directory_.rfind('/') + 1); }
  // Locked (flock) as long as it, or a copy of it in the warden, is open: nobody takes it for what
  // a crash left.
  int fd() const { return fd_.get(); }
  int worker_fd(int local_rank) const;  // for clone3's CLONE_INTO_CGROUP

  // SIGKILL to everything in it.
  void kill();
  // No process is in it that hasn't ended; or it isn't there any more.
  bool is_empty() const;
  // With what workers have made in it. False: it isn't empty.
  bool remove();

  bool counts_memory() const { return counts_memory_; }
  WorkerMemory memory_of(int local_rank) const;
  // How often it was refused a process or a thread for its limit.
  std::uint64_t pids_refused(int local_rank) const;

  const CgroupTree& tree() const { return *tree_; }

 private:
  std::string leaf(int local_rank) const;
  void fill(const IsolationPlan& plan);
  void set(const std::string& directory, const CgroupSetting& setting);

  const std::shared_ptr<CgroupTree> tree_;  // second owners: all that look at it
  const std::string directory_;
  bool counts_memory_ = false;
  UniqueFd fd_;
  std::vector<UniqueFd> leaves_;  // by local rank
};

// No process is in it or below it, not even one that is ending and so can't be moved out. A cgroup
// that isn't there is empty, too.
bool is_empty_cgroup(const CgroupTree& tree, const std::string& directory);

// Removes a cgroup with all below it. False: not all of them are empty.
bool remove_cgroups(CgroupTree& tree, const std::string& directory);

}  // namespace ddprun::agent
