// SPDX-License-Identifier: Apache-2.0
// Threads of a library inside somebody else's program.
#pragma once

#include <functional>
#include <thread>

namespace ddprun {

// Starts a thread with every signal blocked: the program's handlers must run on its own threads.
// The caller's signal mask is the same afterwards, also when this throws. `name` has at most 15
// characters. Throws Error(kResourceExhausted) if the system has no further thread.
std::thread start_quiet_thread(const char* name, std::function<void()> body);

}  // namespace ddprun
