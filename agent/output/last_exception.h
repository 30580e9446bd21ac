// SPDX-License-Identifier: Apache-2.0
// The last exception that a worker's output names: what it most likely ended of. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// From the exception's name on: "torch.OutOfMemoryError: CUDA out of memory. …", "bdb.BdbQuit",
// "what():  std::bad_alloc". Without blanks and "[rank3]: " before it; a view into `lines`. Empty:
// they name none. An earlier one may have been caught, and doesn't count.
std::string_view last_exception(const std::vector<std::string>& lines);

// Whether this is how Python ends where it wants a line of a stdin that has none: pdb's prompt
// (breakpoint()), input(). `exception`: as above.
bool is_of_empty_stdin(std::string_view exception);

}  // namespace ddprun::agent
