// SPDX-License-Identifier: Apache-2.0
// Who listens on a TCP port of this machine, as far as /proc shows it to this user.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::rendezvous {

// "python3, pid 4711"; "another user's process" when the socket is seen but not its owner; empty
// when nothing listens there (any more).
std::string describe_port_holder(std::uint16_t port);

}  // namespace ddprun::rendezvous
