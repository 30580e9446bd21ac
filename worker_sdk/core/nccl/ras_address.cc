// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/ras_address.h"

#include <cstdint>

namespace ddprun::nccl {

std::string ras_address(const std::string& run_id, const Endpoint& store) {
  // FNV-1a: the same on every node, whatever its C++ library.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : run_id + "\n" + to_string(store)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return "localhost:" + std::to_string(21'000 + hash % 7'000);
}

}  // namespace ddprun::nccl
