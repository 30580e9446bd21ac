// SPDX-License-Identifier: Apache-2.0
// What holds for each type of a message. Pure.
#pragma once

#include <cstdint>
#include <variant>

#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

// The round that a message speaks of; nullptr: of none. Of an AgentMessage or a RendezvousMessage.
template <typename... Types>
std::uint64_t* round_of(std::variant<Types...>& message) {
  return std::visit(
      [](auto& each) -> std::uint64_t* {
        if constexpr (requires { each.round; }) return &each.round;
        return nullptr;
      },
      message);
}

// What may come without a number, and be lost with its connection.
inline bool may_be_unnumbered(const AgentMessage& message) {
  return std::holds_alternative<Ack>(message) || std::holds_alternative<CutOff>(message) ||
         std::holds_alternative<Stalled>(message) || std::holds_alternative<Inspection>(message) ||
         std::holds_alternative<StepTimes>(message) || std::holds_alternative<Tail>(message);
}

}  // namespace ddprun::membership
