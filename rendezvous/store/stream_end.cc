// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/stream_end.h"

#include "rendezvous/store/proxy_frame.h"

namespace ddprun::store {

void StreamEnd::reconnect() {
  out.rewind();
  in.rewind();
  is_heard = false;
}

std::optional<std::string> StreamEnd::next_frame(std::uint64_t round, std::uint64_t received,
                                                 std::uint64_t end) {
  const std::uint64_t position = out.position();
  const std::string bytes = is_heard ? out.take(kMaxFrameBytes, end) : std::string();
  if (bytes.empty() && !in.owes_acknowledgement(received)) return std::nullopt;
  in.acknowledged(received);
  return encode_frame({round, position, received, bytes});
}

}  // namespace ddprun::store
