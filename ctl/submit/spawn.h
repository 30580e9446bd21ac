// SPDX-License-Identifier: Apache-2.0
// Starts a program with descriptors of our choice.
#pragma once

#include <sys/types.h>

#include <array>
#include <string>
#include <vector>

#include "common/environment.h"

namespace ddprun::submit {

struct SpawnCall {
  std::vector<std::string> argv;               // argv[0] is looked for in PATH where it has no "/"
  Environment environment;                     // besides ours; replaces what has the same name
  std::array<int, 3> descriptors{-1, -1, -1};  // become 0, 1, 2; the others are closed on exec
  std::string directory = {};                  // where it starts; empty: here
  bool own_session = false;               // the terminal's signals, and its end, don't reach it
  std::vector<std::string> without = {};  // variables of ours that it doesn't get
};

// The child's process id; whoever calls reaps it. It has no signal blocked or ignored. Throws
// Error(kUnsupported) where there is no such program or directory, else Error(kSystem).
pid_t spawn(const SpawnCall& call);

}  // namespace ddprun::submit
