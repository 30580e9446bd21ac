// SPDX-License-Identifier: Apache-2.0
// The versions of a protocol that one side speaks. Pure.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "common/text.h"

namespace ddprun {

struct VersionRange {
  int oldest = 1;
  int newest = 1;
};

// Returns the newest version that both speak.
inline std::optional<int> newest_in_both(VersionRange one, VersionRange other) {
  const int newest = std::min(one.newest, other.newest);
  if (newest < std::max(one.oldest, other.oldest)) return std::nullopt;
  return newest;
}

// Returns "version 2" or "versions 1 to 2".
inline std::string to_string(VersionRange range) {
  return range.oldest == range.newest ? concat("version ", range.newest)
                                      : concat("versions ", range.oldest, " to ", range.newest);
}

}  // namespace ddprun
