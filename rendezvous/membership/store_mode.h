// SPDX-License-Identifier: Apache-2.0
// The names of StoreMode: on the command line, in messages, in what people are told. Pure.
#pragma once

#include <optional>
#include <string_view>

#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

const char* to_string(StoreMode mode);  // "direct", "proxy"
std::optional<StoreMode> store_mode_named(std::string_view name);

// The workers' store is on the rendezvous' own port.
inline bool store_is_at_endpoint(const JobSettings& settings) {
  return settings.rdzv_backend == kStaticBackend && settings.store == StoreMode::kDirect;
}
// It dies with node rank 0's agent.
inline bool store_is_at_node(const JobSettings& settings) {
  return settings.rdzv_backend != kStaticBackend && settings.store == StoreMode::kDirect;
}

}  // namespace ddprun::membership
