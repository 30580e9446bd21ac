// SPDX-License-Identifier: Apache-2.0
// Which hosts a job runs on: --hosts and --hostfile in the grammars of Open MPI, Hydra (MPICH),
// DeepSpeed, Horovod and Slurm (docs/ssh.md). Pure. A fault is thrown as Error(kInvalidArgument):
// one line that names the place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

struct Host {
  std::string name;      // as ssh gets it: "n01", "user@n01", "10.0.0.7", "fe80::1"
  int slots = 0;         // workers that fit; 0: not said
  std::string where;     // who named it: "--hosts", "hosts.txt:3"
  bool is_here = false;  // this machine: started without ssh

  // Without "user@".
  std::string address() const;
};

struct HostList {
  std::vector<Host> hosts;         // not empty
  std::vector<std::string> notes;  // of what was read and means nothing here; one line each
};

// At most so many hosts in a list, and bytes in a file.
inline constexpr std::size_t kMostHosts = 10'000;
inline constexpr std::size_t kMostHostFileBytes = std::size_t{1} << 22;

// "n[01-04,07]:8,gpu9:4": hosts or ranges with ":SLOTS" or without, separated by commas. `origin`
// is for messages.
HostList parse_hosts(std::string_view text, const std::string& origin);

// A host or a range in each line, with ":SLOTS" or "slots=N" (and max-slots=M, as Open MPI has it).
// Line ends of any system, a byte order mark, blank lines and what follows "#" mean nothing.
HostList parse_host_file(std::string_view text, const std::string& path);

// Keeps the hosts that `include` names (empty: all) and `exclude` doesn't. Both are as in --hosts,
// without slots, spelled as in the list with or without "user@".
void filter_hosts(std::vector<Host>& hosts, const std::string& include, const std::string& exclude);

}  // namespace ddprun::launcher
