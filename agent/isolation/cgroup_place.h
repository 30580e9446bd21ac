// SPDX-License-Identifier: Apache-2.0
// Where on this machine cgroups for workers can be made: inside the one that ddprun was given, and
// nowhere else (docs/isolation.md). Only looks.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "agent/isolation/cgroup_tree.h"

namespace ddprun::agent {

// The leaf for ddprun itself: a cgroup with processes can't give controllers to those below it.
inline constexpr char kSupervisor[] = "ddprun-supervisor";

struct CgroupPlace {
  std::string directory;  // that the workers' cgroups are made in; empty: `problem` says why
  std::string problem;    // one line
  std::vector<std::string> controllers;  // that it has: those that can be given on
  std::vector<std::string> enabled;      // that it gives on already
  bool needs_supervisor = false;         // ddprun is in it, and has to leave it first
  std::string crowd;  // who else is in it, so that no controller can be given on; empty: nobody
};

// Of process `own` of user `user`.
CgroupPlace find_cgroup_place(const CgroupTree& tree, pid_t own, uid_t user);

// The words of a line of a kernel's file.
std::vector<std::string> words_of(const std::string& text);

}  // namespace ddprun::agent
