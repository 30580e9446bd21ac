// SPDX-License-Identifier: Apache-2.0
// This node's cgroups for workers, for as long as a ddprun lives: ddprun goes into a leaf of its
// own, controllers are given on, each round gets a cgroup, and at the end all is as it was.
// docs/isolation.md.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/isolation/isolation_plan.h"
#include "agent/isolation/round_cgroup.h"

namespace ddprun::agent {

class WorkerCgroups {
 public:
  // Moves process `own` where that is needed, and ends what rounds of a ddprun that is gone have
  // left here, which takes a second at most. Throws Error that names the file; nothing is changed
  // then. `plan.makes_cgroups`.
  WorkerCgroups(std::shared_ptr<CgroupTree> tree, IsolationPlan plan, pid_t own);
  WorkerCgroups(const WorkerCgroups&) = delete;
  WorkerCgroups& operator=(const WorkerCgroups&) = delete;

  // Throws as RoundCgroup. The one of the round before may be there still.
  std::shared_ptr<RoundCgroup> begin_round();

  // Back to where ddprun was when this moved it, unless others have come to depend on what was made
  // here. No round's cgroup is in use any more: what is still in one is killed. Waits a second at
  // most for each cgroup whose processes are ending.
  void close();

 private:
  void enable_controllers();
  void end_leftovers();
  bool end_round(const std::string& round);  // false: its processes can't be killed

  const std::shared_ptr<CgroupTree> tree_;
  const IsolationPlan plan_;
  const pid_t own_;
  const std::string supervisor_;
  bool moved_ = false;
  std::vector<std::string> enabled_;  // by this
  int num_rounds_ = 0;
  std::vector<std::string> rounds_;  // directories; most of them are gone
};

// Moves a process into the leaf of `directory` that is for ddprun, made where it isn't there: what
// it starts later is in it, and finds the place above by its name. Throws Error.
void enter_supervisor(CgroupTree& tree, const std::string& directory, pid_t process);

}  // namespace ddprun::agent
