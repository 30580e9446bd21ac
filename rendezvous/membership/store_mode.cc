// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/store_mode.h"

namespace ddprun::membership {

const char* to_string(StoreMode mode) { return mode == StoreMode::kProxy ? "proxy" : "direct"; }

std::optional<StoreMode> store_mode_named(std::string_view name) {
  if (name == "direct") return StoreMode::kDirect;
  if (name == "proxy") return StoreMode::kProxy;
  return std::nullopt;
}

}  // namespace ddprun::membership
