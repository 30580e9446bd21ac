// SPDX-License-Identifier: Apache-2.0
// One end, a node's or the rendezvous', of the two byte streams of a node and a round, and what it
// says in frames (docs/store-proxy.md). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/store/byte_stream.h"

namespace ddprun::store {

struct StreamEnd {
  OutgoingBytes out;
  IncomingBytes in;
  // The other end has said, on this connection, what it has: until then it is sent none of `out`,
  // for it may have that.
  bool is_heard = false;

  // A new connection.
  void reconnect();

  // The next frame of `round`, which acknowledges what came before `received` and has bytes of
  // `out` before `end`; nullopt: nothing is to be said now.
  std::optional<std::string> next_frame(std::uint64_t round, std::uint64_t received,
                                        std::uint64_t end = OutgoingBytes::kNoEnd);
};

}  // namespace ddprun::store
