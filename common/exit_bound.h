// SPDX-License-Identifier: Apache-2.0
// For a process in which a library hangs, or may: its exit handlers could hang as well.
#pragma once

#include <chrono>

namespace ddprun {

// From now on: once the process calls exit(), or main() has returned, it is gone within `limit`,
// with the status that it was given, whatever those exit handlers do that are there by now, and the
// destructors of the static objects that are. Handlers run in the opposite order of their
// registration: what comes after the last call runs first, and has no limit. The shortest limit
// counts. Any thread.
void bound_exit(std::chrono::milliseconds limit);

}  // namespace ddprun
