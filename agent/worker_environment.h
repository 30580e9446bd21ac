// SPDX-License-Identifier: Apache-2.0
// Makes the arguments and the environment of one worker: torchrun's variables, and DDPRUN_*. Pure,
// but for network_variables(node_addr).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/environment.h"
#include "common/interfaces.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

// The command that the workers of a node execute.
struct WorkerCommand {
  std::vector<std::string> argv;     // of every worker; argv[0] is the file to execute
  bool dollars_are_doubled = false;  // "$$" in an argument means "$"
};

// Returns `command` with "${local_rank}" and "$local_rank" replaced in its arguments, not in
// argv[0].
std::vector<std::string> worker_arguments(const WorkerCommand& command, int local_rank);

// Values that are the same for all workers of this node and all rounds.
struct WorkerEnvironmentOptions {
  Environment inherited;  // the agent's own
  std::string run_id;
  std::string role = "default";
  std::string signals_to_handle;  // signals that the agent's program passes on
  int max_restarts = 0;
  int num_workers = 1;  // on this node
  // --virtual-local-rank: the one GPU of each worker, by local rank, as CUDA_VISIBLE_DEVICES names
  // it; every worker's LOCAL_RANK is 0. Empty: off.
  std::vector<std::string> devices = {};
  bool recovers_in_place = false;       // --recovery=inplace
  bool observes = false;                // --observe
  std::optional<int> terminal_columns;  // set where the agent's output is a terminal
  // Returns defaults for a node with this address, in rounds of several nodes. Empty: none.
  std::function<Environment(const std::string& node_addr)> network = {};
};

// Paths of one worker. A variable with an empty path is not set, and not inherited either.
struct WorkerPaths {
  std::string error_file;
  std::string agent_socket;
  std::string timer_file = {};  // if it is empty, the variable is inherited
  std::string observer = {};    // its folder, which comes first in PYTHONPATH
};

// Returns the complete environment of the worker `local_rank` in `round`, as "NAME=value".
std::vector<std::string> worker_environment(const WorkerEnvironmentOptions& options,
                                            const membership::StartRound& round, int local_rank,
                                            const WorkerPaths& paths);

// Returns the environment of a worker that is started before its node has a place in a round. It is
// the same as above, without the variables of a place. DDPRUN_ROUND is 0, and the rest comes over
// the agent's socket.
std::vector<std::string> parked_environment(const WorkerEnvironmentOptions& options, int local_rank,
                                            const std::string& agent_socket,
                                            const std::string& observer = {});

// Returns all variables of a place, for a worker that goes on in place in `round`
// (docs/inplace.md). `index`: its index among the node's remaining workers; `local_rank`: as it was
// started.
std::vector<std::string> place_variables(const WorkerEnvironmentOptions& options,
                                         const membership::StartRound& round, int index,
                                         int num_left, int local_rank);

// Returns the whole "NAME=value"s that are in `now` but not in `before`.
std::vector<std::string> environment_news(const std::vector<std::string>& before,
                                          const std::vector<std::string>& now);

// Returns GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and NCCL_SOCKET_IFNAME for a node whose peers reach
// it by the numeric address `node_addr`. `addresses` are those of its interfaces.
//
// By default Gloo and TensorPipe (PyTorch's RPC) take the address of the host's name, which may be
// a loopback address. So their variables name the interface of `node_addr`, if that is the
// interface's first address: they take only an interface's first one.
//
// NCCL takes "ib…" if there are any. Else it takes all interfaces with an address, except the
// loopback's and Docker's, and its ranks meet by the first. If some of these are virtual, the
// variable excludes all kinds of virtual interfaces (NCCL reads at most 16 names, each the
// beginning of some). All real interfaces stay, since NCCL may move data by several.
//
// A variable is not set if that gains nothing, or if no interface has the address.
Environment network_variables(const std::string& node_addr,
                              const std::vector<InterfaceAddress>& addresses);

// Returns the same for this machine's present interfaces.
Environment network_variables(const std::string& node_addr);

}  // namespace ddprun::agent
