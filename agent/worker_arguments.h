// SPDX-License-Identifier: Apache-2.0
// What the workers of a node execute, and the arguments of one of them. Pure.
#pragma once

#include <string>
#include <vector>

namespace ddprun::agent {

struct WorkerCommand {
  std::vector<std::string> argv;     // of every worker; argv[0] is the file to execute
  bool dollars_are_doubled = false;  // "$$" in an argument means "$"
};

// `command` with "${local_rank}" and "$local_rank" replaced in its arguments, not in argv[0].
std::vector<std::string> worker_arguments(const WorkerCommand& command, int local_rank);

}  // namespace ddprun::agent
