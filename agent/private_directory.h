// SPDX-License-Identifier: Apache-2.0
// An agent's private directory below the temporary directory. The agent removes its own at its end.
// If the agent was killed, its warden removes it. If both were killed, the next agent that ends
// finds it unlocked and removes it.
#pragma once

#include <string>

#include "common/unique_fd.h"

namespace ddprun::agent {

// Returns an unused name for such a directory below `parent`.
std::string new_directory_name(const std::string& parent);

// Makes the directory, for this user alone. As long as the result is open, the directory doesn't
// count as left over. On a file system without locks (NFS) no directory ever does. Throws
// Error(kSystem).
UniqueFd make_locked_directory(const std::string& path);

// Removes this user's directories below `parent` that nobody has locked, with their content. Errors
// are ignored: a later call may succeed.
void remove_leftover_directories(const std::string& parent);

}  // namespace ddprun::agent
