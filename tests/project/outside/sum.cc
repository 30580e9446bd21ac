// SPDX-License-Identifier: Apache-2.0
#include <ddprun/core/session.h>

#include <cstdio>

int main() {
  const auto session = ddprun::Session::from_env();
  const auto communicator = session->make_communicator(ddprun::BackendChoice::kHost);
  auto value = static_cast<float>(session->rank() + 1);
  communicator->all_reduce({.data = &value, .count = 1}, ddprun::ReduceOp::kSum);
  std::printf("rank %d: the sum is %g\n", session->rank(), static_cast<double>(value));
}
