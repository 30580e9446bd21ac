// SPDX-License-Identifier: Apache-2.0
// A job of thousands of nodes in one process: emulated agents against the rendezvous of a World.
// Workers and nodes fail, are cut off and lag. The invariants of rounds are checked on the way, and
// the times are taken.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/fleet/event_log.h"
#include "bench/fleet/world.h"
#include "common/endpoint.h"

namespace ddprun::bench {

struct EmulationOptions {
  Endpoint endpoint;     // of the rendezvous; not in virtual time
  pid_t daemon_pid = 0;  // to look at its memory; 0: not known
  int num_agents = 100;  // members of the job; as many spares as losses come on top
  int min_agents = 0;    // rounds may be smaller; 0: one where faults are random, else num_agents
  int num_workers_per_node = 8;
  // One after the other, each when all run; these times are taken.
  int num_failures = 0;  // of random members' workers
  int num_losses = 1;    // of random members
  // At random moments of `duration`, after that.
  int num_kills = 0;       // of workers, of agents and of whole nodes; agents come again
  int num_partitions = 0;  // of up to a tenth of the nodes
  int num_slow_nodes = 0;  // join late, answer late, start and stop their workers slowly
  std::chrono::milliseconds duration{0};
  std::optional<int> max_restarts, max_node_losses;  // of the job; nullopt: enough
  std::chrono::milliseconds keep_alive{5'000};
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
  std::vector<double> restart;        // random faults: a round is stopped → one runs everywhere
  double end = 0;                     // last worker ends well → every agent has left with code 0
  double daemon_bytes_per_agent = 0;  // 0: not known
};

struct EmulationResult {
  EmulationTimes times;
  std::uint64_t num_rounds = 0;
  int num_faults = 0;              // random ones that took place; late messages are not counted
  std::optional<std::string> end;  // the job ended before its time, as it may with these budgets
  double seconds = 0;              // that all took, in the world's time
  std::uint64_t num_events = 0, digest = 0;  // virtual time
  // An invariant was violated: which, when, and what happened before.
  std::optional<std::string> violation;
  std::vector<std::string> last_events;
};

// A world's hosts, and whom it reports to.
struct WorldPlan {
  std::vector<std::chrono::microseconds> latencies;  // one way, of each host
  std::vector<int> slow;                             // hosts with a long one
  std::vector<int> cut;                              // hosts that will be cut off
  NodeObserver* observer = nullptr;                  // outlives the world, as does the log
  EventLog* log = nullptr;
  std::function<void(const std::string&)> violated;  // an invariant that the world checks itself
};

class Emulation {
 public:
  using MakeWorld = std::function<std::unique_ptr<World>(const WorldPlan&)>;
  // Against a real rendezvous, in real time.
  explicit Emulation(EmulationOptions options);
  // In virtual time: messages of old rounds come late, and processes stand still, too.
  Emulation(EmulationOptions options, const MakeWorld& make_virtual);
  ~Emulation();

  // Blocks until the job is over or an invariant violated. Throws Error(kTimeout) naming the phase
  // and how many agents it waited for; in virtual time that is a violation, too.
  EmulationResult run();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::bench
