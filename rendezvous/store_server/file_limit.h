// SPDX-License-Identifier: Apache-2.0
// The process' limit of open descriptors.
#pragma once

#include <cstddef>

namespace ddprun::store {

// Raises the soft limit to the hard one, for a server that holds a descriptor per worker, and
// returns what it is now. Children inherit it: who starts programs that use select(2) lowers it
// again for them. Any thread.
std::size_t raise_file_limit();

}  // namespace ddprun::store
