// SPDX-License-Identifier: Apache-2.0
#include "common/boot_id.h"

#include <fstream>

namespace ddprun {

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

}  // namespace ddprun
