// SPDX-License-Identifier: Apache-2.0
// A call into a library that may never return, on a thread that can be left behind.
#pragma once

#include <functional>

#include "common/clock.h"

namespace ddprun {

// Runs `call` on a thread of its own. True: it returned before the deadline. False: it still runs;
// its thread is abandoned, so `call` must own (by value) all that it touches; or there was no
// thread for it, which is logged.
bool returns_before(Deadline deadline, std::function<void()> call);

}  // namespace ddprun
