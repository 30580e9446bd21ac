// SPDX-License-Identifier: Apache-2.0
// Whether an address is this machine's, as the kernel tells it.
#pragma once

#include <optional>
#include <string>

namespace ddprun::launcher {

// nullopt: `host` is a name, and none is looked up here. Throws Error(kSystem).
std::optional<bool> is_own_address(const std::string& host);

}  // namespace ddprun::launcher
