// SPDX-License-Identifier: Apache-2.0
// A program in the place of this one, for as long as it runs.
#pragma once

#include <string>
#include <vector>

namespace ddprun::ctl {

// Runs argv[0], a path, and waits for it. It has our terminal and streams: SIGINT of a ^C is its
// alone, and what somebody sends to this process (SIGINT, SIGTERM, SIGHUP, SIGQUIT) is sent on.
// Its exit status, or 128 and the number of its signal. Throws Error(kUnavailable) where it can't
// be started. Blocking; one thread.
int run_in_foreground(const std::vector<std::string>& argv);

}  // namespace ddprun::ctl
