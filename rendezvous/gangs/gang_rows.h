// SPDX-License-Identifier: Apache-2.0
// The names of the queue's rows in the journal of ddprund (docs/durability.md). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "common/log.h"

namespace ddprun::gangs {

inline constexpr char kGangRows[] = "gangs/";       // gangs/N/spec, gangs/N/state
inline constexpr char kNodeRows[] = "gang_nodes/";  // gang_nodes/NAME/OWNER
inline constexpr char kSpecRow[] = "spec", kStateRow[] = "state";

inline std::string gang_row(std::uint64_t number, const char* which) {
  return concat(kGangRows, number, "/", which);
}
inline std::string node_row(const std::string& name, const std::string& owner) {
  return concat(kNodeRows, name, "/", owner);
}

}  // namespace ddprun::gangs
