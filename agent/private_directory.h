// SPDX-License-Identifier: Apache-2.0
// An agent's private directory below the temporary directory. The agent removes its own. Its warden
// does so if the agent was killed. If both were, the next agent at its end finds that nobody has it
// locked.
#pragma once

#include <string>

#include "common/unique_fd.h"

namespace ddprun::agent {

// A name for such a directory below `parent`; nobody has it.
std::string new_directory_name(const std::string& parent);

// Makes the directory, for this user alone. It is not left over while the result is open; where a
// file system has no locks (NFS), none is ever. Throws Error(kSystem).
UniqueFd make_locked_directory(const std::string& path);

// Removes, with what is in them, this user's directories below `parent` that nobody has locked.
// Errors are nobody's business: a later call may do better.
void remove_leftover_directories(const std::string& parent);

}  // namespace ddprun::agent
