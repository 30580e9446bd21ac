// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/node.h"

namespace ddprun::membership {

const char* to_string(NodePhase phase) {
  switch (phase) {
    case NodePhase::kIdle:
      return "idle";
    case NodePhase::kStarting:
      return "starting";
    case NodePhase::kRunning:
      return "running";
    case NodePhase::kSucceeded:
      return "succeeded";
    case NodePhase::kStopping:
      return "stopping";
  }
  return "unknown";
}

std::string node_key(const Join& join, const ConnectionFacts& facts) {
  const std::string& addr = join.advertised_addr.empty() ? facts.peer_addr : join.advertised_addr;
  return join.host.empty() ? addr : concat(join.host, " (", addr, ")");
}

std::string describe(const Node& node) {
  const std::string& addr =
      node.join.advertised_addr.empty() ? node.facts.peer_addr : node.join.advertised_addr;
  const std::string host = node.join.host.empty() ? addr : node.join.host;
  if (!node.node_rank) return concat(host, " (", addr, ")");
  return concat("node ", *node.node_rank, " (", host, ", ", addr, ")");
}

}  // namespace ddprun::membership
