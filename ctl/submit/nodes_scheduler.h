// SPDX-License-Identifier: Apache-2.0
// Nodes with a standing agent: a job is a gang in the queue of their ddprund (docs/nodes.md).
// docs/submit.md, "nodes".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/environment.h"
#include "ctl/submit/scheduler.h"
#include "rendezvous/pages/gang_client.h"

namespace ddprun::submit {

// The place of the queue, and ddprunctl's flags for it: as the job file says, else as the flags
// say. Throws Error.
struct NodesQueue {
  pages::GangClientOptions client;
  std::vector<std::string> flags;
};
using FindQueue = std::function<NodesQueue(const NodesKeys&)>;

// `environment`: that of the jobs, of which a part stays here. `ddprun`: the launcher on this
// machine, which knows what flags mean.
std::unique_ptr<Scheduler> nodes_scheduler(Environment environment, std::string ddprun,
                                           FindQueue find_queue);

}  // namespace ddprun::submit
