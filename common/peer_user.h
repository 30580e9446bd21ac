// SPDX-License-Identifier: Apache-2.0
// The user whose process is at the other end of a TCP connection within this machine, by the kernel
// (sock_diag(7)).
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace ddprun {

// The effective user id with which the peer's socket was made. nullopt: the peer is on another
// machine, has gone, or has not accepted the connection yet; or the kernel doesn't say.
std::optional<uid_t> peer_user(int fd);

// The kernel answers that here. It is asked about a connection of this process' own until it has
// answered once. True also where no such connection can be made now.
bool peer_users_are_known();

// In a user namespace: the number that stands for everybody outside, unless it is this process'
// own.
bool is_outsider(uid_t user);
inline constexpr char kUserNamespaceHint[] =
    "a rendezvous in a user namespace (a container's, systemd's PrivateUsers=) can't tell the "
    "users outside apart: give both sides --token-file or TLS";
std::string user_namespace_hint();  // "; " and that, if this process is in one

// Why the server at the other end of `fd`, which proves nothing, is not to be obeyed. Another user
// of this machine has taken the port then. It is known also before it has accepted the connection.
// Empty: it may be obeyed. That holds for root's server, one of systemd's DynamicUser=, one on
// another machine. kHiddenPeer: the server is on this machine. The kernel names neither its user
// nor the listener's, though it names others. It has just ended, or it hides.
std::string stranger_problem(int fd);
inline constexpr char kHiddenPeer[] =
    "is on this machine, and the kernel doesn't say whose program it is: give both sides "
    "--token-file or TLS";

// The user of the client at the other end of `fd`. nullopt: it didn't come over loopback, or the
// kernel doesn't tell users. kNobody: its user is unknown, since it has gone or is_outsider().
inline constexpr uid_t kNobody = static_cast<uid_t>(-1);
std::optional<uid_t> loopback_client(int fd);

// Why that client, which proves nothing, is not served: it is another user's than `owner`'s or
// root's. Empty: it may be.
std::string loopback_client_problem(int fd, uid_t owner);

// As stranger_problem(), for a server that says what to run, or is told what to. It may not be on
// another machine either, where anybody could answer in its place.
std::string commander_problem(int fd);

}  // namespace ddprun
