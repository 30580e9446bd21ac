// SPDX-License-Identifier: Apache-2.0
// The process' limit of open descriptors.
#pragma once

#include <cstddef>

namespace ddprun::store {

// Raises the soft limit to the hard one, for a server that holds a descriptor per worker, and
// returns what it is now. Children inherit it: who starts programs gives them
// initial_file_limit() back, since those that use select(2) rely on it. Any thread.
std::size_t raise_file_limit();

// The soft limit that this process was started with. Any thread.
std::size_t initial_file_limit();

}  // namespace ddprun::store
