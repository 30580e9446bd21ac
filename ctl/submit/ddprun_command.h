// SPDX-License-Identifier: Apache-2.0
// Makes ddprun's command line from a job file, and computes the ranks of the job's nodes as far as
// the file tells. Also checks for flags that a job file must not have. Pure, except where this
// machine's ddprun is run.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/submit/job_file.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// A scheduler's part in the command line.
struct CommandTraits {
  std::string ddprun = "ddprun";    // its path, unless the job file has one
  std::string default_nodes = "1";  // if the job says no number; empty: then no --nnodes
  bool says_nodes = true;           // false: the scheduler adds --nnodes itself
  std::vector<std::string> flags;   // the scheduler's, put before the job's own
};

// Returns ddprun, its flags in the order of docs/submit.md (those of [restarts] by name), PROGRAM
// and its arguments. It has no values of `environment`.
std::vector<std::string> ddprun_command(const JobFile& job, const CommandTraits& traits);

// Returns the ranks where the scheduler numbers the nodes itself. `node` is the name for each, with
// "#" for its number: "node # of the step". Has as many nodes as the job can have, spares last.
std::vector<RankRow> rank_map(const JobFile& job, const std::string& node);

// Notes on what rank_map() assumes; empty: nothing.
std::vector<std::string> rank_notes(const JobFile& job);

// The fewest and most nodes that a job asks for, spares included.
struct NodeCount {
  int least = 1, most = 1;
};
NodeCount nodes_wanted(const JobFile& job);

// Some flags of ddprun are decided by a key of the job file, or by the scheduler. Slots and nodes
// are counted from these, so a job file's `flags` must not change them. Returns a line for each
// such flag at `place` ("nodes"): the flag, and what to use instead. `without` and `with` are texts
// of --show-config, for the job without its `flags` and with them. ddprun has parsed them, so every
// spelling is found.
std::vector<std::string> decided_flags(std::string_view place, std::string_view without,
                                       std::string_view with);

// Returns the path of the ddprun beside this program; "ddprun" if there is none.
std::string ddprun_beside();

// Returns the output of `ddprun --show-config` with the job's flags; empty: there is no ddprun
// here, or it is of another kind. Throws Error(kInvalidArgument) with a line for each thing that
// ddprun refuses, or for each flag of decided_flags().
std::string check_flags(const JobFile& job, const std::string& ddprun, std::string_view place);

// Returns the time that --show-config's text has for `key`, given or by default. nullopt: none.
// Pure.
std::optional<std::chrono::milliseconds> shown_time(std::string_view config,
                                                    const std::string& key);

}  // namespace ddprun::submit
