// SPDX-License-Identifier: Apache-2.0
// The faults, with their times and places. All of it follows from the seed. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "bench/fleet/random.h"

namespace ddprun::bench {

struct Fault {
  enum class Kind {
    kWorkerFails,
    kAgentKilled,  // ddprun is killed: its connection ends at once
    kPowerLoss,    // its host is gone without a word
    kPartition,    // nodes can't be reached for a while
    kStandStill,   // ddprun stands still for a while
    kLateMessage,  // somebody hears a message of an old round
  };
  Kind kind = Kind::kWorkerFails;
  std::chrono::microseconds at{0};     // since the first round runs
  std::chrono::microseconds lasts{0};  // kPartition, kStandStill
  std::vector<int> nodes;              // one, but with kPartition
  bool up = true, down = true;         // kPartition: which direction is cut
  std::uint64_t draw = 0;              // kLateMessage
};

struct FaultOptions {
  int num_nodes = 0;  // spares included
  int num_kills = 0, num_partitions = 0;
  std::vector<int> slow_nodes;  // stand still now and then
  std::chrono::milliseconds duration{0};
  std::chrono::milliseconds keep_alive{5'000};
  bool late_messages = false;
  bool stand_still = false;
};

// In order of time.
std::vector<Fault> plan_faults(const FaultOptions& options, Random& random);

// `count` different ones of 0 … num_nodes − 1.
std::vector<int> draw_nodes(int count, int num_nodes, Random& random);

const char* to_string(Fault::Kind kind);

}  // namespace ddprun::bench
