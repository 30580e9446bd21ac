// SPDX-License-Identifier: Apache-2.0
// Messages of old rounds, put between the messages of a shipped agent. Each takes a number on the
// wire. The agent's own numbers and acknowledgements are moved accordingly. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rendezvous/messages/messages.h"

namespace ddprun::membership::testing {

// A message of round `round` that nobody would send now. `draw` decides its type.
AgentMessage late_agent_message(std::uint64_t draw, std::uint64_t round);
RendezvousMessage late_rendezvous_message(std::uint64_t draw, std::uint64_t round);
// The output of a rank at which nobody looks. It is longer than allowed, and names a question.
Tail late_tail(std::uint64_t draw);
TailWanted late_tail_wanted(std::uint64_t draw, std::uint64_t round);

// The round that an AgentMessage or a RendezvousMessage is about; nullptr: it is about none.
template <typename... Types>
std::uint64_t* round_of(variants::variant<Types...>& message) {
  return variants::visit(
      [](auto& each) -> std::uint64_t* {
        if constexpr (requires { each.round; }) return &each.round;
        return nullptr;
      },
      message);
}

// The numbers of one session.
class WireNumbers {
 public:
  // The agent's message gets its number on the wire. Returns messages that must be sent again
  // before it.
  std::vector<AgentEnvelope> out(AgentEnvelope& envelope);
  // A message to the agent gets acknowledgements of the agent's own numbers.
  void in(RendezvousEnvelope& envelope);
  // A new connection is welcome. Added messages that aren't acknowledged have to be sent again.
  // Call in() with the Welcome before, and rest() when the agent has heard it.
  void welcomed();
  std::vector<AgentEnvelope> rest();

  // Adds a message, to be sent now on a welcome connection.
  AgentEnvelope put_in(AgentMessage message);

 private:
  struct Added {
    std::uint64_t wire = 0;
    AgentMessage message;
  };
  std::vector<AgentEnvelope> due_before(std::uint64_t wire);

  std::vector<Added> added_;  // in the order of their numbers
  std::uint64_t own_sent_ = 0, heard_ = 0;
  std::uint64_t acknowledged_ = 0;  // on the wire
  std::size_t next_again_ = 0;  // index of added_: the next one to send again on this connection
};

}  // namespace ddprun::membership::testing
