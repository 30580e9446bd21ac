// SPDX-License-Identifier: Apache-2.0
// What holds for each type of a message. Pure.
#pragma once

#include <cstdint>

#include "common/variant.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

// The round that a message speaks of; nullptr: of none. Of an AgentMessage or a RendezvousMessage.
template <typename... Types>
std::uint64_t* round_of(variants::variant<Types...>& message) {
  return variants::visit(
      [](auto& each) -> std::uint64_t* {
        if constexpr (requires { each.round; }) return &each.round;
        return nullptr;
      },
      message);
}

// What may come without a number, and be lost with its connection.
inline bool may_be_unnumbered(const AgentMessage& message) {
  return variants::holds_alternative<Ack>(message) ||
         variants::holds_alternative<CutOff>(message) ||
         variants::holds_alternative<Stalled>(message) ||
         variants::holds_alternative<Inspection>(message) ||
         variants::holds_alternative<StepTimes>(message) ||
         variants::holds_alternative<Tail>(message);
}

}  // namespace ddprun::membership
