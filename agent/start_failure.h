// SPDX-License-Identifier: Apache-2.0
// What is said of a worker that could not be started.
#pragma once

#include <string>

#include "agent/warden/protocol.h"
#include "agent/worker_group.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::agent {

// Fills in exit code, note, and whether a restart may mend it, from a report of kNotStarted.
// `cpus`: those that the worker was to be bound to, in words.
void explain_start_failure(const warden::Report& report, const WorkerSpec& worker,
                           const std::string& cpus, membership::WorkerFailure& failure);

}  // namespace ddprun::agent
