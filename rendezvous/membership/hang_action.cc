// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/hang_action.h"

#include <array>
#include <cstddef>

namespace ddprun::membership {
namespace {

constexpr std::array<const char*, 4> kNames = {"default", "restart", "report", "off"};

}  // namespace

const char* to_string(HangAction action) { return kNames.at(static_cast<std::size_t>(action)); }

std::optional<HangAction> hang_action_named(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<HangAction>(i);
  }
  return std::nullopt;
}

}  // namespace ddprun::membership
