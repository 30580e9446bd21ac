// SPDX-License-Identifier: Apache-2.0
// Names of files that each node of a job is to have for itself.
#pragma once

#include <string>

namespace ddprun::launcher {

// "${hostname}" in it is this host's name.
std::string with_host_name(std::string path);

}  // namespace ddprun::launcher
