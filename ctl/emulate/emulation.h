// SPDX-License-Identifier: Apache-2.0
// A job of thousands of nodes in one process: emulated agents against a real rendezvous over real
// sockets. Nodes are lost at random; the invariants of rounds are checked on the way, and the times
// are taken.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoint.h"

namespace ddprun::ctl {

struct EmulationOptions {
  Endpoint endpoint;
  pid_t daemon_pid = 0;  // to look at its memory; 0: not known
  int num_agents = 100;  // members of the job; as many spares as losses come on top
  int num_workers_per_node = 8;
  int num_losses = 1;    // of random members, one after the other
  int num_failures = 0;  // of random members' workers, one after the other, before the losses
  std::uint64_t seed = 1;
  int max_joining = 1000;                       // at once without an answer
  std::chrono::milliseconds max_spawn_time{0};  // of a node, drawn anew for each; stopping likewise
  std::chrono::milliseconds time_limit{120'000};
};

// Seconds, each from the named beginning to the last agent concerned.
struct EmulationTimes {
  double join = 0;                   // first join → all members were told their ranks
  std::vector<double> loss_told;     // a member vanishes → every other one was told to stop
  std::vector<double> loss_running;  // … → all members' workers run again
  std::vector<double> failure_told, failure_running;  // likewise for a worker's failure
  double end = 0;                     // last worker ends well → every agent has left with code 0
  double daemon_bytes_per_agent = 0;  // 0: not known
};

class Emulation {
 public:
  explicit Emulation(EmulationOptions options);
  ~Emulation();

  // Blocks until the job is over. Throws Error(kProtocol) naming the invariant that was violated
  // and the seed, or Error(kTimeout) naming the phase and how many agents it waited for.
  EmulationTimes run();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::ctl
