// SPDX-License-Identifier: Apache-2.0
// The calls that the library of fake_libnccl.cc has seen, for load_nccl()'s tests.
#pragma once

#include <string>

namespace ddprun::test {

struct FakeLibncclCalls {
  bool is_blocking = false;  // of the last communicator, by its configuration and the environment
  int min_ctas = 0, max_ctas = 0, cga_cluster_size = 0, split_share = 0, traffic_class = 0;
  std::string net_name, comm_name;
  bool has_split_config = false;
  int dtype = -1, op = -1;  // of the last operation, as NCCL numbers them
};

// The function "fake_libnccl_calls" of the library.
using FakeLibncclCallsFunction = FakeLibncclCalls*();

}  // namespace ddprun::test
