// SPDX-License-Identifier: Apache-2.0
// Messages of old rounds, put between those of a shipped agent: each takes a number on the wire of
// its own, and the agent's own numbers and acknowledgements are moved accordingly. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rendezvous/messages/messages.h"

namespace ddprun::membership::testing {

// Of round `round`, as nobody would say it now. Which type follows from `draw`.
AgentMessage late_agent_message(std::uint64_t draw, std::uint64_t round);
RendezvousMessage late_rendezvous_message(std::uint64_t draw, std::uint64_t round);
// Of what a rank prints, with nobody who looks: more than there may be of it, and a question.
Tail late_tail(std::uint64_t draw);
TailWanted late_tail_wanted(std::uint64_t draw, std::uint64_t round);

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

// Of one session.
class WireNumbers {
 public:
  // What the agent sends gets its number on the wire. Returns what has to be sent again before it.
  std::vector<AgentEnvelope> out(AgentEnvelope& envelope);
  // What the agent hears acknowledges its own numbers.
  void in(RendezvousEnvelope& envelope);
  // A new connection is welcome: what was put in and isn't acknowledged has to be sent again.
  // Call in() with the Welcome before, and rest() when the agent has heard it.
  void welcomed();
  std::vector<AgentEnvelope> rest();

  // Sent now, on a connection that is welcome.
  AgentEnvelope put_in(AgentMessage message);

 private:
  struct Added {
    std::uint64_t wire = 0;
    AgentMessage message;
  };
  std::vector<AgentEnvelope> due_before(std::uint64_t wire);

  std::vector<Added> added_;  // in order
  std::uint64_t own_sent_ = 0, heard_ = 0;
  std::uint64_t acknowledged_ = 0;  // on the wire
  std::size_t next_again_ = 0;      // of added_: not sent on this connection yet
};

}  // namespace ddprun::membership::testing
