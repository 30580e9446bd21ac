// SPDX-License-Identifier: Apache-2.0
// Names of many hosts as few words. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::doctor {

// "gpu[01-30,32], login1": names that differ in the number at their end are put together, in the
// order in which each kind came first. At most `most` words, then how many hosts there are besides.
std::string host_ranges(const std::vector<std::string>& names, std::size_t most = 8);

}  // namespace ddprun::doctor
