// SPDX-License-Identifier: Apache-2.0
// What `ddprunctl emulate` prints: a table, one JSON object, or a violated invariant.
#pragma once

#include <string>

#include "ctl/emulate/emulation.h"

namespace ddprun::ctl {

// To stdout.
void print_table(const EmulationOptions& options, const EmulationResult& result);
void print_json(const EmulationOptions& options, const EmulationResult& result);

// To stderr: which, when, what happened before, and `command`, which repeats it.
void print_violation(const EmulationOptions& options, const EmulationResult& result,
                     const std::string& command);

}  // namespace ddprun::ctl
