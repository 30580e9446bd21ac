// SPDX-License-Identifier: Apache-2.0
// Submits jobs to nodes with standing agents: a job is a gang in the queue of their ddprund
// (docs/nodes.md). docs/submit.md, "nodes".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/environment.h"
#include "ctl/submit/scheduler.h"
#include "rendezvous/pages/gang_client.h"

namespace ddprun::submit {

// The queue to use, and ddprunctl's flags for it. The job file's values come first, then the
// flags'. Throws Error.
struct NodesQueue {
  pages::GangClientOptions client;
  std::vector<std::string> flags;
};
using FindQueue = std::function<NodesQueue(const ctl::ConfiguredEndpoint&)>;

// `environment` is the jobs'; a part of it stays on this machine. `ddprun` is this machine's
// launcher, which is asked what flags mean.
std::unique_ptr<Scheduler> nodes_scheduler(Environment environment, std::string ddprun,
                                           FindQueue find_queue);

}  // namespace ddprun::submit
