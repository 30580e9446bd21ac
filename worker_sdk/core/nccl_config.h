// SPDX-License-Identifier: Apache-2.0
// NCCL's options per communicator. Its time-out is in communicator.h.
#pragma once

#include <optional>
#include <string>

namespace ddprun {

// Fields of ncclConfig_t by their names there; NCCL's manual says what they do. NCCL chooses a
// value for each that isn't set. Its own environment variables (NCCL_MAX_CTAS, …) win over what is
// set here.
struct NcclConfig {
  std::optional<int> min_ctas{}, max_ctas{};  // min_ctas needs max_ctas
  std::optional<int> cga_cluster_size{};
  std::optional<int> traffic_class{};  // NCCL ≥ 2.26
  // True: a group of split() shares its parent's resources, and the abort of one aborts the other.
  std::optional<bool> split_share{};
  std::string net_name{};   // "IB", "Socket", or a plugin's
  std::string comm_name{};  // NCCL ≥ 2.27: in its logs and profilers
};

}  // namespace ddprun
