// SPDX-License-Identifier: Apache-2.0
// Helpers that several checks share. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/cpu_set.h"
#include "ctl/doctor/facts.h"
#include "ctl/doctor/finding.h"
#include "ctl/doctor/thresholds.h"

namespace ddprun::doctor {

// "512 bytes", "64 KiB", "1.5 GiB".
std::string size_text(double bytes);

// "940 Mb/s", "23.5 Gb/s".
std::string rate_text(double bits_per_second);

// Says why nothing is known of a file: it isn't there or may not be read (skipped), or it can't be
// read or parsed (unknown).
Outcome not_known(const Readings& files, const std::string& path);

// The outcome for a question that has no answer.
template <typename T>
Outcome no_answer(const Asked<T>& asked, const std::string& what) {
  return asked.not_asked.empty() ? unknown(what + ": no answer within the deadline")
                                 : skipped(asked.not_asked);
}

// Judges a file that holds one number, which must be at least `least`. `setting` is its name for
// sysctl(8).
Outcome at_least(const Facts& facts, const std::string& path, double least,
                 const std::string& setting);

// A network interface that is up and not the loopback.
struct Link {
  std::string name;
  long long mtu = 0, speed_mbits = 0;  // 0: not known
  int numa_node = -1;
};
std::vector<Link> links_up(const Readings& files);

// Whether the links' speeds were asked for, but no answer came in time.
inline bool hides_speeds(const Facts& facts) {
  return facts.link_speeds.not_asked.empty() && !facts.link_speeds.answer;
}
Outcome no_speeds();

// A port of an RDMA adapter.
struct RdmaPort {
  std::string name;   // "mlx5_0 port 1"
  std::string start;  // where the paths of its files begin: "/sys/class/infiniband/mlx5_0/ports/1"
  bool is_ethernet = false, is_active = false;
};
std::vector<RdmaPort> rdma_ports(const Readings& files);

// Returns the CPUs that this process may use; nullopt: not known.
std::optional<CpuSet> own_cpus(const Readings& files);

// Returns the version of the loaded NVIDIA driver: "550.54.15"; "" if there is none.
std::string driver_version(const Readings& files);

// Returns the PCI addresses of NVIDIA GPUs, without those that are given to a virtual machine.
std::vector<std::string> nvidia_gpus(const Readings& files);

// "a, b and 3 more".
std::string list_text(const std::vector<std::string>& words, std::size_t most = 6);

}  // namespace ddprun::doctor
