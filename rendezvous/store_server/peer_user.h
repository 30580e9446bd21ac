// SPDX-License-Identifier: Apache-2.0
// Whose process is at the other end of a TCP connection within this machine.
#pragma once

#include <sys/types.h>

#include <optional>

namespace ddprun::store {

// The effective user id with which the peer's socket was made, from the kernel (sock_diag(7)).
// nullopt: the peer is on another machine or has gone, or the kernel doesn't say.
std::optional<uid_t> peer_user(int fd);

// The kernel answers that here; it was asked once, about a connection of this process' own.
bool peer_users_are_known();

}  // namespace ddprun::store
