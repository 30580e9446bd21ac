// SPDX-License-Identifier: Apache-2.0
// The numbers and names of signals, and whether this process ignores one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

// Returns "SIGTERM"; a real-time or unknown one is "signal 40".
std::string signal_name(int signal_number);

// Parses "SIGTERM", "TERM", "term", "15".
std::optional<int> parse_signal(std::string_view text);

// Whether the signal is ignored because whoever started this process wanted that (nohup): it stays
// so.
bool is_ignored(int signal_number);

}  // namespace ddprun
