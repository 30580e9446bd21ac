// SPDX-License-Identifier: Apache-2.0
// Which operation the others wait in for a rank that makes no progress. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/membership/hang_verdict.h"

namespace ddprun::membership {

// "rank 3 never came to all_reduce #127 (25.0 MiB float32, sum) of communicator 0; ranks 0–2 wait
// in it for 30.1 s", of the operation in which most others are. Empty: none is in another one than
// `outlier`, or they don't record their operations.
std::string missing_from(const Inspected& inspected, std::size_t outlier);

}  // namespace ddprun::membership
