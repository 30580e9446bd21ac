// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/decided_flags.h"

#include <algorithm>
#include <array>
#include <map>

#include "common/log.h"

namespace ddprun::submit {
namespace {

struct Decided {
  std::string_view flag;    // as a key: "nproc_per_node"
  std::string_view key;     // of the job file, that says it; empty: leave it out
  std::string_view places;  // where it is so; empty: everywhere
};

// A rendezvous of the user's own is one that Slurm's, Kubernetes' and ssh's nodes can meet at.
constexpr std::array kDecided = {
    Decided{"nnodes", "nodes", ""},
    Decided{"nproc_per_node", "workers_per_node", ""},
    Decided{"spares", "spares", ""},
    Decided{"standalone", "", ""},
    Decided{"standing_agents", "", ""},
    Decided{"node_rank", "", ""},
    Decided{"master_addr", "", ""},
    Decided{"master_port", "", ""},
    Decided{"local_addr", "", ""},  // of one node
    Decided{"hosts", "to.ssh.hosts", "ssh"},
    Decided{"hosts", "", "slurm kubernetes nodes"},
    Decided{"hostfile", "to.ssh.hostfile", "ssh"},
    Decided{"hostfile", "", "slurm kubernetes nodes"},
    Decided{"include_hosts", "to.ssh.include", "ssh"},
    Decided{"include_hosts", "", "slurm kubernetes nodes"},
    Decided{"exclude_hosts", "to.ssh.exclude", "ssh"},
    Decided{"exclude_hosts", "", "slurm kubernetes nodes"},
    Decided{"ssh", "to.ssh.ssh", "ssh"},
    Decided{"ssh", "", "slurm kubernetes nodes"},
    Decided{"ssh_fanout", "", "slurm kubernetes nodes"},
    Decided{"ssh_timeout", "", "slurm kubernetes nodes"},
    Decided{"ssh_keep_alive", "", "slurm kubernetes nodes"},
    Decided{"remote_ddprun", "ddprun", ""},
    Decided{"env", "[environment] or environment_without", ""},
    Decided{"rdzv_endpoint", "to.nodes.endpoint", "nodes"},
    Decided{"rdzv_backend", "", "nodes"},
    Decided{"rdzv_id", "", "nodes"},
    Decided{"token_file", "to.nodes.token_file", "nodes"},
    Decided{"tls_ca", "to.nodes.tls_ca", "nodes"},
    Decided{"tls_cert", "to.nodes.tls_cert", "nodes"},
    Decided{"tls_key", "to.nodes.tls_key", "nodes"},
};

// "KEY = VALUE  # WHO" of what somebody says, by KEY; what counts by default is a comment.
std::map<std::string_view, std::string_view> said_in(std::string_view config) {
  std::map<std::string_view, std::string_view> said;
  while (!config.empty()) {
    const std::string_view line = config.substr(0, config.find('\n'));
    config.remove_prefix(std::min(line.size() + 1, config.size()));
    if (line.starts_with('#') || line.find(" = ") == std::string_view::npos) continue;
    said[line.substr(0, line.find(" = "))] = line;
  }
  return said;
}

}  // namespace

std::vector<std::string> decided_flags(std::string_view place, std::string_view without,
                                       std::string_view with) {
  const auto before = said_in(without), after = said_in(with);
  std::vector<std::string> lines;
  for (const Decided& each : kDecided) {
    const bool is_here = each.places.empty() || each.places.find(place) != std::string_view::npos;
    const auto found = after.find(each.flag);
    if (!is_here || found == after.end()) continue;
    const auto known = before.find(each.flag);
    if (known != before.end() && known->second == found->second) continue;
    std::string flag(each.flag);
    std::replace(flag.begin(), flag.end(), '_', '-');
    lines.push_back(each.key.empty()
                        ? concat("flags: --", flag, " is not the job's to say with --to ", place,
                                 ": leave it out")
                        : concat("flags: --", flag, " is decided by a key of the job file: say ",
                                 each.key, " in its place"));
  }
  return lines;
}

}  // namespace ddprun::submit
