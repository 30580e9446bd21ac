// SPDX-License-Identifier: Apache-2.0
// The process' limit of open file descriptors.
#pragma once

#include <cstddef>

namespace ddprun::store {

// Raises the soft limit to the hard one, for a server that has a descriptor per worker. Returns the
// new limit. Children inherit it, so code that starts programs sets it back to
// initial_file_limit(): programs that use select(2) rely on that. Any thread.
std::size_t raise_file_limit();

// Returns the soft limit with which this process was started. Any thread.
std::size_t initial_file_limit();

}  // namespace ddprun::store
