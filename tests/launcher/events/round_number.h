// SPDX-License-Identifier: Apache-2.0
// A round as the second node of two hears of it. Its first rank is 4, of 6.
#pragma once

#include <cstdint>

#include "rendezvous/messages/messages.h"

namespace ddprun::test {

inline membership::StartRound round_number(int number) {
  membership::StartRound start;
  start.round = static_cast<std::uint64_t>(number);
  start.restart_count = number - 1;
  start.node_rank = 1;
  start.num_nodes = 2;
  start.first_global_rank = 4;
  start.world_size = 6;
  return start;
}

}  // namespace ddprun::test
