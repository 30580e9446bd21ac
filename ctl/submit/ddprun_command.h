// SPDX-License-Identifier: Apache-2.0
// The command line of ddprun that a job file means. Also the ranks that the job's nodes will have,
// as far as the file says, and the flags that are not the job's to say. Pure, but where this
// machine's own ddprun is asked.
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
  std::string ddprun = "ddprun";    // where it is, unless the job file says so
  std::string default_nodes = "1";  // for a job that says none; empty: then no --nnodes
  bool says_nodes = true;           // else the scheduler adds --nnodes itself
  std::vector<std::string> flags;   // of the scheduler: before the job's own
};

// ddprun, its flags in the order of docs/submit.md (those of [restarts] by name), PROGRAM and its
// arguments. No value of `environment` is in it.
std::vector<std::string> ddprun_command(const JobFile& job, const CommandTraits& traits);

// The ranks at a place that gives them to nodes in its own order. `node` is the name of each, where
// "#" is its number: "node # of the step". Has the most nodes that the job can have, spares last.
std::vector<RankRow> rank_map(const JobFile& job, const std::string& node);

// Notes on what the map takes for granted; empty: nothing.
std::vector<std::string> rank_notes(const JobFile& job);

// How many nodes it asks for: at least, at most, spares among them.
struct NodeCount {
  int least = 1, most = 1;
};
NodeCount nodes_wanted(const JobFile& job);

// A key of the job file, or the place that it is submitted to, decides the matter of some flags of
// ddprun. Slots are counted and nodes are asked for by these, so that `flags` can't say otherwise.
// Returns a line for each such flag in a job file's `flags` at `place` ("nodes"): which flag, and
// what to use in its place. Both texts are of --show-config, for the job's command line without its
// `flags` and with them. ddprun itself has read them, so every spelling counts.
std::vector<std::string> decided_flags(std::string_view place, std::string_view without,
                                       std::string_view with);

// The ddprun beside the running program; "ddprun" where there is none.
std::string ddprun_beside();

// The output of `ddprun --show-config` with the job's flags; empty: there is no ddprun here, or it
// is of another kind. Throws Error(kInvalidArgument): a line for each thing that it refuses, or for
// each of the job's `flags` that others decide at `place` (see decided_flags()).
std::string check_flags(const JobFile& job, const std::string& ddprun, std::string_view place);

// The time that such a text has for `key`, given or by default. nullopt: it has none. Pure.
std::optional<std::chrono::milliseconds> shown_time(std::string_view config,
                                                    const std::string& key);

}  // namespace ddprun::submit
