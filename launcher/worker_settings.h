// SPDX-License-Identifier: Apache-2.0
// What a plan means for the workers of its node, as their agent takes it.
#pragma once

#include "agent/worker_arguments.h"
#include "agent/worker_environment.h"
#include "launcher/prepare.h"

namespace ddprun::launcher {

agent::WorkerCommand worker_command(const JobPlan& plan);

// Asks for the width of ddprun's terminal.
agent::WorkerEnvironmentOptions worker_environment_options(const JobPlan& plan);

}  // namespace ddprun::launcher
