// SPDX-License-Identifier: Apache-2.0
// Processes that should be gone: who they are, and what they are in. Only looks.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "agent/isolation/cgroup_tree.h"

namespace ddprun::agent {

// In the cgroup and all below it. Ended ones aren't among them.
std::vector<pid_t> processes_in(const CgroupTree& tree, const std::string& directory);

// In the cgroup itself.
std::vector<pid_t> processes_directly_in(const CgroupTree& tree, const std::string& directory);

// Descendants of a process, ended ones left out.
std::vector<pid_t> processes_below(const CgroupTree& tree, pid_t ancestor);

// "pid 4711 (python3 train.py), state D in nfs_wait_bit_killable; pid …", at most five of them and
// how many more; empty: there is none.
std::string to_text(const CgroupTree& tree, const std::vector<pid_t>& pids);

}  // namespace ddprun::agent
