// SPDX-License-Identifier: Apache-2.0
// fleet_load's output.
#pragma once

#include "bench/fleet/emulation.h"

namespace ddprun::bench {

void print_table(const EmulationOptions& options, const EmulationResult& result);
void print_json(const EmulationOptions& options, const EmulationResult& result);
// On stderr: which invariant, with which seed, and the last events before it.
void print_violation(const EmulationOptions& options, const EmulationResult& result);

}  // namespace ddprun::bench
