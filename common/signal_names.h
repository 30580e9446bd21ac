// SPDX-License-Identifier: Apache-2.0
// Signal numbers, names, and what this process does with one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

// "SIGTERM"; real-time and unknown ones as "signal 40".
std::string signal_name(int signal_number);

// Accepts "SIGTERM", "TERM", "term", "15".
std::optional<int> parse_signal(std::string_view text);

// Whoever started this process wanted it ignored (nohup): it stays so.
bool is_ignored(int signal_number);

}  // namespace ddprun
