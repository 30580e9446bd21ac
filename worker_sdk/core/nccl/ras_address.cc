// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/ras_address.h"

#include "common/fnv1a.h"

namespace ddprun::nccl {

std::string ras_address(const std::string& run_id, const Endpoint& store) {
  return "localhost:" + std::to_string(21'000 + fnv1a(run_id + "\n" + to_string(store)) % 7'000);
}

}  // namespace ddprun::nccl
