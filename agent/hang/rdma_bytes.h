// SPDX-License-Identifier: Apache-2.0
// What the RDMA ports (InfiniBand, RoCE) of this machine have moved: their traffic passes the
// kernel by, and the ports' counters are all there is. Of all processes together, so it is evidence
// only.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::agent {

// Bytes sent and received by all ports in `folder`, as the hardware counts; 0 without any.
std::uint64_t rdma_port_bytes(const std::string& folder = "/sys/class/infiniband");

}  // namespace ddprun::agent
