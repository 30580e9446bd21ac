// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace ddprun::nccl
