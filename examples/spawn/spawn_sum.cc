// SPDX-License-Identifier: Apache-2.0
// Starts four ranks from inside a program: each adds its rank, and all see the sum (docs/spawn.md).
#include <cstdio>

#include <ddprun/core/session.h>
#include <ddprun/core/spawn.h>

void work(int rank) {
  const auto session = ddprun::Session::from_env();
  const auto communicator = session->make_communicator();
  float sum = static_cast<float>(rank);
  communicator->all_reduce({.data = &sum, .count = 1, .dtype = ddprun::DType::kFloat32},
                           ddprun::ReduceOp::kSum);
  std::printf("rank %d of %d: the sum is %g\n", rank, session->world_size(), sum);
}

int main() {
  try {
    ddprun::spawn(work, 4);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
