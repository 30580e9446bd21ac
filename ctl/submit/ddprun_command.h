// SPDX-License-Identifier: Apache-2.0
// The command line of ddprun that a job file means. Pure.
#pragma once

#include <string>
#include <vector>

#include "ctl/submit/job_file.h"

namespace ddprun::submit {

// What a scheduler decides of the command line.
struct CommandTraits {
  std::string ddprun = "ddprun";    // where it is, unless the job file says so
  std::string default_nodes = "1";  // for a job that says none; empty: then no --nnodes
  bool says_nodes = true;           // else the scheduler adds --nnodes itself
  std::vector<std::string> flags;   // of the scheduler: before the job's own
};

// ddprun, its flags in the order of docs/submit.md (those of [restarts] by name), PROGRAM and its
// arguments. No value of `environment` is in it.
std::vector<std::string> ddprun_command(const JobFile& job, const CommandTraits& traits);

// "2", "2:4"; empty: the job says nothing.
std::string nodes_text(const JobFile& job);

}  // namespace ddprun::submit
