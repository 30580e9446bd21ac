// SPDX-License-Identifier: Apache-2.0
// The signals of a ddprun whose job runs on other machines: counted as they come, looked at between
// calls, which they end. One thread.
#pragma once

#include <optional>

namespace ddprun::launcher {

// From here on SIGINT, SIGTERM, SIGHUP and SIGQUIT are counted, unless whoever started this process
// wanted one ignored; SIGUSR1 and SIGUSR2, which warn a node's ddprun of its end, don't end it.
void take_gang_signals();

int num_ending_signals();
int first_ending_signal();  // 0: none yet

// The last one that was outlived, once.
std::optional<int> take_outlived_signal();

}  // namespace ddprun::launcher
