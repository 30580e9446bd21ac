// SPDX-License-Identifier: Apache-2.0
// Finds the last exception in a worker's output: most likely the one that ended it. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// Returns the last exception, from its name on: "torch.OutOfMemoryError: CUDA out of memory. …",
// "bdb.BdbQuit", "what():  std::bad_alloc". The result is a view into `lines`, without blanks and
// "[rank3]: " before it. Empty: they name none. An earlier exception may have been caught, so it
// doesn't count.
std::string_view last_exception(const std::vector<std::string>& lines);

// Returns the last traceback of Python, its exception as the last line, as shortened_traceback().
// Empty: the lines name no exception.
std::vector<std::string> last_traceback(const std::vector<std::string>& lines);

// Keeps at most kMaxTracebackLines: the first line and the innermost calls, where it broke.
inline constexpr std::size_t kMaxTracebackLines = 24;
std::vector<std::string> shortened_traceback(std::vector<std::string> lines);

// Whether Python ends with this exception when it wants a line of a stdin that has none: pdb's
// prompt (breakpoint()), input(). `exception`: as returned above.
bool is_of_empty_stdin(std::string_view exception);

}  // namespace ddprun::agent
