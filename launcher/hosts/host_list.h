// SPDX-License-Identifier: Apache-2.0
// Reads a job's hosts: --hosts and --hostfile, in the formats of Open MPI, Hydra (MPICH),
// DeepSpeed, Horovod and Slurm (docs/ssh.md). Pure. An error is thrown as Error(kInvalidArgument),
// with one line that names its place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

struct Host {
  std::string name;      // as ssh gets it: "n01", "user@n01", "10.0.0.7", "fe80::1"
  int slots = 0;         // number of workers that fit; 0: not given
  std::string where;     // who named it: "--hosts", "hosts.txt:3"
  bool is_here = false;  // this machine: started without ssh

  // Returns the name without "user@".
  std::string address() const;
};

struct HostList {
  std::vector<Host> hosts;         // not empty
  std::vector<std::string> notes;  // on parts that have no effect here; one line each
};

// Most hosts in a list, and most bytes in a file.
inline constexpr std::size_t kMostHosts = 10'000;
inline constexpr std::size_t kMostHostFileBytes = std::size_t{1} << 22;

// Parses "n[01-04,07]:8,gpu9:4": hosts or ranges, with or without ":SLOTS", separated by commas.
// `origin` is for messages.
HostList parse_hosts(std::string_view text, const std::string& origin);

// Parses a host or a range in each line, with ":SLOTS" or "slots=N" (and Open MPI's max-slots=M).
// Ignores a byte order mark, blank lines, any system's line ends, and text after "#".
HostList parse_host_file(std::string_view text, const std::string& path);

// Keeps the hosts that `include` names (empty: all) and `exclude` doesn't. Both are as in --hosts,
// without slots. They name hosts as the list does, with or without "user@".
void filter_hosts(std::vector<Host>& hosts, const std::string& include, const std::string& exclude);

}  // namespace ddprun::launcher
