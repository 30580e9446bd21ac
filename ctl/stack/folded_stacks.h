// SPDX-License-Identifier: Apache-2.0
// Shows the page of ranks' stacks (docs/stack.md) to people: ranks at the same place share one
// entry. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <string>

namespace ddprun::ctl {

// Parses the page. Throws Error(kInvalidArgument) with the page's words if the page says why it has
// no stacks. Throws Error(kProtocol) if it is another page.
boost::json::object parse_stacks(const std::string& page);

struct FoldedStacks {
  std::string text;             // entries with most ranks first, then ranks without a stack
  std::size_t num_ranks = 0;    // ranks that were asked
  std::size_t num_missing = 0;  // those of them that have no stack
};

// Folds ranks that have Python frames by these, others by their native frames. With `has_native`
// both count, and both are shown. Throws as parse_stacks().
FoldedStacks fold_stacks(const std::string& page, bool has_native);

}  // namespace ddprun::ctl
