// SPDX-License-Identifier: Apache-2.0
// Who holds memory of this node's GPUs, and whom of them the next round has to wait for. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

struct GpuProcess {
  int device = 0;           // NVML's index
  std::int64_t pid = 0;     // as the driver knows it: the host's, also for a container
  std::uint64_t bytes = 0;  // 0: the driver doesn't say

  friend bool operator==(const GpuProcess&, const GpuProcess&) = default;
};

// ddprun-gpus' answer, one line per process: "DEVICE PID BYTES". nullopt: not of that form.
std::string to_line(const GpuProcess& process);
std::optional<GpuProcess> parse_gpu_process(std::string_view line);

struct GpuHolders {
  // Dead, and not there before the round: its processes, whose memory the driver still holds.
  std::vector<GpuProcess> dying;
  // Alive, and not there before the round: somebody else's.
  std::vector<GpuProcess> foreign;
};

// `before` and `now`: of all GPUs, before the round's processes were started and after they ended.
GpuHolders gpu_holders(const std::vector<GpuProcess>& before, const std::vector<GpuProcess>& now,
                       const std::function<bool(std::int64_t pid)>& is_alive);

// "GPU 0: 12.0 GiB by pid 71, GPU 1: …"; at most `limit` of them.
std::string describe(const std::vector<GpuProcess>& processes, std::size_t limit = 8);

}  // namespace ddprun::agent
