// SPDX-License-Identifier: Apache-2.0
// The work of quiet ranks that /proc doesn't show: bytes over TCP, time on GPUs, traffic of the
// machine's RDMA ports. Only quiet ranks are looked at, once a second, so that others cost nothing.
// io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/gpu/gpu_helper.h"
#include "agent/gpu/gpu_lines.h"
#include "agent/hang/rank_sample.h"
#include "agent/hang/socket_bytes.h"
#include "common/clock.h"

namespace ddprun::agent {

// Returns the bytes that the hardware of all ports in `folder` has sent and received; 0 without
// ports.
std::uint64_t rdma_port_bytes(const std::string& folder = "/sys/class/infiniband");

struct WorkRates {
  int gpu_percent = 0;
  std::uint64_t network = 0;  // bytes per second
  std::uint64_t rdma = 0;     // bytes per second, of all processes of this machine
};

class OutsideWork {
 public:
  // `gpus_program`: ddprun-gpus, started for the first look; empty: GPUs are not looked at.
  OutsideWork(boost::asio::io_context& io, const std::string& gpus_program, std::size_t num_ranks);

  // The processes of each quiet rank, by local rank. nullopt: the rank isn't quiet; its work until
  // it is quiet again doesn't count. look() does nothing where all are nullopt.
  using Families = std::vector<std::optional<std::vector<pid_t>>>;
  void look(const Families& families);

  // Adds the sum of a rank's work to `facts`; it never goes back.
  void add_to(ProcessFacts& facts, std::size_t local_rank) const;

  // Returns the rates between the last two looks that saw the rank quiet.
  WorkRates rates(std::size_t local_rank) const;

 private:
  struct Rank {
    SocketWatch sockets;
    std::chrono::microseconds gpu{0};
    int gpu_percent = 0;
    std::uint64_t network_rate = 0;
  };
  void look_at(Rank& rank, const std::vector<pid_t>& family, Clock::duration passed);

  std::optional<GpuShares> gpu_shares_;  // nullopt: no answer since the look before
  LazyGpuHelper gpus_;                   // after the members that its answers change
  std::vector<Rank> ranks_;
  std::optional<SocketBytes> sockets_;          // of the present look
  std::optional<Clock::time_point> looked_at_;  // nullopt: the look before saw no quiet rank
  std::uint64_t rdma_bytes_ = 0, rdma_rate_ = 0;
};

// Returns "GPU 98 %, 3.1 MB/s over sockets, 2.0 GB/s on this node's RDMA ports"; empty: there is no
// work.
std::string describe_work(const WorkRates& rates);

}  // namespace ddprun::agent
