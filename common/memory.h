// SPDX-License-Identifier: Apache-2.0
// Memory of special kinds, also with a C library older than these calls.
#pragma once

#include <cstddef>

#include "common/unique_fd.h"

namespace ddprun {

// Zeroes bytes that nobody reads any more: no compiler leaves it out.
void wipe(void* memory, std::size_t size);

// A file without a name in any folder (memfd_create(2)). `flags`: besides MFD_CLOEXEC. Throws
// Error.
UniqueFd make_memory_file(const char* name, unsigned flags = 0);

}  // namespace ddprun
