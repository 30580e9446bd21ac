// SPDX-License-Identifier: Apache-2.0
// A descriptor of a child process that was just started.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/unique_fd.h"

namespace ddprun {

// Readable once the child has ended. Where there can't be one (no descriptor is left; Linux before
// 5.3) the child is killed and reaped, and Error(kSystem) or Error(kResourceExhausted) thrown,
// naming `program`. Precondition: nobody else reaps the child.
UniqueFd open_child_pidfd(pid_t child, const std::string& program);

}  // namespace ddprun
