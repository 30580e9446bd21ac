// SPDX-License-Identifier: Apache-2.0
// Reads the nodes of this ddprun's job from a scheduler's environment: Slurm's step, a PBS job, an
// Indexed Job of Kubernetes. See docs/launcher.md, "Where the nodes meet".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/environment.h"

namespace ddprun::launcher {

struct SchedulerStep {
  std::string name;                    // for people: "Slurm step 77.0"
  std::string job_id;                  // "slurm-77.0": unique to this job
  std::string first_host = {};         // where the nodes meet; empty: see `problem`
  std::uint16_t port = 0;              // the port there; jobs on one node rarely have the same
  int num_hosts = 0;                   // 0: not told
  bool one_each = false;               // each host runs one ddprun
  bool may_be_alone = false;           // with one_each: a host's ddprun may be a job by itself
  std::optional<int> node_index = {};  // this host's place in the scheduler's order
  std::string problem = {};
};

struct SchedulerFacts {
  const Environment& environment;
  std::string host_name;  // as gethostname(2) says
  // Returns a file's content; nullopt: it can't be read.
  std::function<std::optional<std::string>(const std::string& path)> read_file;
};

// nullopt: no known scheduler started this process, or this is a worker of another ddprun. Pure.
std::optional<SchedulerStep> scheduler_step(const SchedulerFacts& facts);

// Notes that this is a batch script or shell of a Slurm job of several nodes, without srun. Begins
// "this machine alone, though Slurm job 77 has 2 nodes: …", and ends with the command that starts
// `arguments` on all nodes. Empty: this process isn't in such a place. Pure.
std::string idle_nodes_note(const Environment& environment,
                            const std::vector<std::string>& arguments);

// Returns scheduler_step() for this process.
std::optional<SchedulerStep> own_scheduler_step(const Environment& environment);

}  // namespace ddprun::launcher
