// SPDX-License-Identifier: Apache-2.0
// Finds the user whose process is at the other end of a TCP connection within this machine. The
// kernel knows it (sock_diag(7)).
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "common/socket.h"

namespace ddprun {

// Returns the effective user id that made the peer's socket. nullopt: the peer is on another
// machine, has gone, or has not accepted the connection yet; or the kernel doesn't say.
std::optional<uid_t> peer_user(int fd);

// Returns the user of the socket that listens at an address of this machine. nullopt: none does, or
// the kernel doesn't say.
std::optional<uid_t> listener_user(const SocketAddress& address);

// Whether the kernel answers these questions here. It is tested with a connection of this process,
// until one test has a definite result. True also if no such connection can be made now.
bool peer_users_are_known();

// Whether the number stands, in a user namespace, for all users outside. False for this process'
// own.
bool is_outsider(uid_t user);
inline constexpr char kUserNamespaceHint[] =
    "a rendezvous in a user namespace (a container's, systemd's PrivateUsers=) can't tell the "
    "users outside apart: give both sides --token-file or TLS";
std::string user_namespace_hint();  // "; " and that text, if this process is in one

// Returns why the server at the other end of `fd`, which proves nothing, must not be obeyed. In
// that case another user of this machine has taken the port. That is known even before the server
// has accepted the connection. Empty: it may be obeyed. Its user is this one, root, one of
// systemd's DynamicUser= or is_outsider(), or it is on another machine. Empty also if it has gone,
// or if the kernel names no users here. `kHiddenPeer`: the server is on this machine. The kernel
// names other users, but neither its user nor the listener's. It has just ended, or it hides.
std::string stranger_problem(int fd);
inline constexpr char kHiddenPeer[] =
    "is on this machine, and the kernel doesn't say whose program it is: give both sides "
    "--token-file or TLS";

// Returns the user of the client at the other end of `fd`. nullopt: it didn't come over loopback,
// or the kernel doesn't name users. kNobody: its user is unknown, since it has gone or
// is_outsider().
inline constexpr uid_t kNobody = static_cast<uid_t>(-1);
std::optional<uid_t> loopback_client(int fd);

// Returns why that client, which proves nothing, is not served: its user is neither `owner` nor
// root, or is unknown. Empty: it may be served.
std::string loopback_client_problem(int fd, uid_t owner);

// Does the same as stranger_problem(), for a server that says what to run, or is told that. It may
// not be on another machine either, where anybody could answer in its place.
std::string commander_problem(int fd);

}  // namespace ddprun
