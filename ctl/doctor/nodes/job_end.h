// SPDX-License-Identifier: Apache-2.0
// The end of the job that this worker is in, by its agent's socket (docs/agent-socket.md): what was
// found is no failure of this program, and every node's ddprun says it in a line.
#pragma once

#include <string>

#include "common/environment.h"
#include "ctl/doctor/nodes/place.h"

namespace ddprun::doctor {

// Asks for it, then waits until this process is ended, for some seconds at most: returns where
// nobody heard it.
void end_job(const Environment& environment, const Place& place, const std::string& reason,
             int exit_code);

}  // namespace ddprun::doctor
