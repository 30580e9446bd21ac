// SPDX-License-Identifier: Apache-2.0
// --dry-run of a job that this ddprun would run itself.
#pragma once

#include "launcher/dry_run/dry_run.h"
#include "launcher/prepare.h"

namespace ddprun::launcher {

// `ready` has no problems. Reads sysfs; where the nodes meet at a numeric address it asks the
// kernel whether this machine has it.
DryRun dry_run_of_node(const Preparation& ready);

// Where the files and the socket of a node's workers would be. `runtime_directory`: of the socket.
WorkerScene worker_scene(const JobPlan& plan, const std::string& runtime_directory);

// What can be known of the round before the nodes meet, where each node is as the one of `plan`.
RoundKnowledge round_knowledge(const JobPlan& plan);

}  // namespace ddprun::launcher
