// SPDX-License-Identifier: Apache-2.0
// Where in a job this process is, when ddprun started it as a worker. Pure.
#pragma once

#include <optional>
#include <string>

#include "common/endpoint.h"
#include "common/environment.h"

namespace ddprun::doctor {

struct Place {
  int local_rank = 0, node_rank = 0, num_nodes = 1;
  int global_rank = 0, world_size = 1;
  Endpoint store;       // of the round
  std::string address;  // numeric: this node, as peers reach it
  std::string round;    // tells the keys of this round from another's
};

// nullopt: no worker of ddprun's. Throws Error(kInvalidArgument) for one whose variables make no
// sense.
std::optional<Place> find_place(const Environment& environment);

}  // namespace ddprun::doctor
