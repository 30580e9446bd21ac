// SPDX-License-Identifier: Apache-2.0
// --hosts and what belongs to it, as given (docs/ssh.md).
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ddprun::launcher {

struct HostsOptions {
  std::string hosts;                          // --hosts
  std::string hostfile;                       // --hostfile
  std::string include;                        // --include-hosts
  std::string exclude;                        // --exclude-hosts
  std::string ssh = "ssh";                    // --ssh: a command line, see split_words()
  std::string remote_ddprun;                  // --remote-ddprun; empty: where this one is
  std::vector<std::string> env;               // --env, as often as it was given
  int fanout = 64;                            // --ssh-fanout
  std::chrono::milliseconds timeout{60'000};  // --ssh-timeout
  // --ssh-keep-alive: a channel on which nothing is heard for so long is cut; 0: never
  std::chrono::milliseconds keep_alive{30'000};

  // This ddprun starts those of the hosts, and runs no worker itself.
  bool is_set() const { return !hosts.empty() || !hostfile.empty(); }
  bool operator==(const HostsOptions&) const = default;
};

}  // namespace ddprun::launcher
