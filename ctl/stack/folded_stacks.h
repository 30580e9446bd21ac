// SPDX-License-Identifier: Apache-2.0
// The page of ranks' stacks (docs/stack.md) as people see it: ranks that are at the same place are
// one entry. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <string>

namespace ddprun::ctl {

// The page's object. Throws Error(kInvalidArgument) with the page's own words where it says why it
// has no stacks, and Error(kProtocol) where it is another page.
boost::json::object parse_stacks(const std::string& page);

struct FoldedStacks {
  std::string text;             // entries of most ranks first, then those without a stack
  std::size_t num_ranks = 0;    // that were asked
  std::size_t num_missing = 0;  // of these: they have no stack
};

// Ranks with Python's frames are folded by those, the others by their native ones. `has_native`: by
// both, and both are shown. Throws as parse_stacks().
FoldedStacks fold_stacks(const std::string& page, bool has_native);

}  // namespace ddprun::ctl
