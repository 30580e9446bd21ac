// SPDX-License-Identifier: Apache-2.0
// Name look-ups that keep a deadline, which getaddrinfo(3) doesn't: where a name server is silent
// it takes 10 s and more. Each runs on a thread of its own, which nobody waits for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/socket.h"

namespace ddprun {

struct NameLookup {
  std::vector<SocketAddress> addresses;
  std::string failure;  // set when there are none: as resolve() (socket.h) words it
};

// Calls `done` once, on the look-up's thread, maybe after the caller has given up or main() has
// returned: it must own what it touches. Throws Error(kResourceExhausted): no further thread.
void look_up_in_background(const Endpoint& endpoint, std::function<void(NameLookup)> done);

// Waits until the deadline at most; after it the look-up goes on by itself, unheard. A numeric host
// is answered at once, without a thread.
NameLookup look_up(const Endpoint& endpoint, Deadline deadline);

}  // namespace ddprun
