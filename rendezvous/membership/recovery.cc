// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/recovery.h"

namespace ddprun::membership {

const char* to_string(Recovery recovery) {
  return recovery == Recovery::kInPlace ? "inplace" : "restart";
}

std::optional<Recovery> recovery_named(std::string_view name) {
  if (name == "restart") return Recovery::kRestart;
  if (name == "inplace") return Recovery::kInPlace;
  return std::nullopt;
}

}  // namespace ddprun::membership
