// SPDX-License-Identifier: Apache-2.0
// Memory of special kinds. Works also with a C library that is older than these calls.
#pragma once

#include <cstddef>

#include "common/unique_fd.h"

namespace ddprun {

// Zeroes bytes that nobody reads any more. The compiler can't optimise it away.
void wipe(void* memory, std::size_t size);

// Makes a file without a name in any folder (memfd_create(2)). `flags` are added to MFD_CLOEXEC.
// Throws Error.
UniqueFd make_memory_file(const char* name, unsigned flags = 0);

}  // namespace ddprun
