// SPDX-License-Identifier: Apache-2.0
// The nodes that this ddprun is one of, read from a scheduler's environment: Slurm's step, a PBS
// job, an Indexed Job of Kubernetes. See docs/launcher.md, "Where the nodes meet".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/environment.h"

namespace ddprun::launcher {

struct SchedulerStep {
  std::string name;    // for people: "Slurm step 77.0"
  std::string job_id;  // "slurm-77.0": no other job has it
  std::string first_host =
      {};                     // where the nodes meet; empty: `problem` says why that can't be told
  std::uint16_t port = 0;     // there; jobs that may share a node differ
  int num_hosts = 0;          // 0: not told
  bool one_each = false;      // each host runs one ddprun
  bool may_be_alone = false;  // also one_each: a host's may be a job by itself
  std::optional<int> node_index = {};  // this host's place in the scheduler's order
  std::string problem = {};
};

struct SchedulerFacts {
  const Environment& environment;
  std::string host_name;  // as gethostname(2) says
  // A file's content; nullopt: it can't be read.
  std::function<std::optional<std::string>(const std::string& path)> read_file;
};

// nullopt: no scheduler that is known started this process, or a ddprun did, whose worker it is.
// Pure.
std::optional<SchedulerStep> scheduler_step(const SchedulerFacts& facts);

// For a batch script or a shell of a Slurm job of several nodes, without srun. It says "this
// machine alone, though Slurm job 77 has 2 nodes: …". It ends with how to start `arguments` on all
// of them. Empty: this process is in no such place. Pure.
std::string idle_nodes_note(const Environment& environment,
                            const std::vector<std::string>& arguments);

// scheduler_step() of this process.
std::optional<SchedulerStep> own_scheduler_step(const Environment& environment);

}  // namespace ddprun::launcher
