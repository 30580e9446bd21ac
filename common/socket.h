// SPDX-License-Identifier: Apache-2.0
// Blocking TCP with a deadline on every call. Code that may not use Asio (the SDK, the store
// client) uses it, and so do the few synchronous steps of the daemons. It never does a reverse
// look-up.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/unique_fd.h"

namespace ddprun {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  std::uint16_t port() const;
  void set_port(std::uint16_t port);
  bool is_loopback() const;
  bool is_any() const;
  std::string host_text() const;  // numeric: "fe80::1%eth0"; "::ffff:1.2.3.4" is "1.2.3.4"
  std::string text() const;       // numeric "host:port"
};

// Returns the addresses of endpoint.host (numeric or a name; forward look-up only), each with
// endpoint.port. An empty host means loopback. Throws Error(kUnavailable) naming the host.
std::vector<SocketAddress> resolve(const Endpoint& endpoint);

// Whether `address` is on one of this machine's interfaces (loopback included).
bool is_local_address(const SocketAddress& address);

// Listens. The socket is non-blocking and close-on-exec, with SO_REUSEADDR and backlog SOMAXCONN.
// Throws Error(kUnavailable) "address in use" or "no port is free", Error(kInvalidArgument) if the
// port needs a privilege, or as throw_system_error().
UniqueFd listen_on(const SocketAddress& address);

SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);
std::string peer_text(int fd);  // for a log; works also if the peer has gone

// Returns a connected, close-on-exec, TCP_NODELAY socket in non-blocking mode (use the calls
// below). Refused connections and unresolved names are retried with back-off until the deadline,
// since the peer may be starting. Throws Error(kUnavailable): who was tried, for how long, the last
// failure. A name is looked up anew for each round of attempts. The resolver, getaddrinfo(3), takes
// no deadline. So a silent name server delays this beyond the deadline, by the resolver's own
// time-outs (resolv.conf: timeout × attempts for each server, 10 s by default). Numeric hosts never
// wait.
UniqueFd connect_to(const Endpoint& endpoint, Deadline deadline);

// Makes one attempt at one address, for code with its own retries. Returns 0 and the socket in
// `out`, or errno: ETIMEDOUT if the deadline passed.
int connect_once(const SocketAddress& address, Deadline deadline, UniqueFd* out);

// Makes one attempt at each of `addresses`, in order. Several share the time evenly, each at most
// `patience`: one that drops packets must not use up the others' time. If none connects, the
// descriptor is invalid, and *failure says why, for each address.
UniqueFd connect_to_any(const std::vector<SocketAddress>& addresses, Clock::duration patience,
                        Deadline deadline, std::string* failure);

// True: accept(2) failed because of that one connection, which is gone; the next one may succeed.
// False: the cause is this process or system.
bool is_of_one_connection(int accept_error);

// Returns the text for any other error of accept(2): what it is, and when accepting goes on.
// Without a free descriptor that is when other connections close.
std::string accept_trouble(int accept_error);

// These write or read exactly `size` bytes. They throw Error(kTimeout) or Error(kConnectionLost).
// After either the stream's position is unknown: close it.
void send_all(int fd, const void* data, std::size_t size, Deadline deadline);
void receive_all(int fd, void* data, std::size_t size, Deadline deadline);

// The result of one attempt that never waits, for code with its own waits.
struct SocketStep {
  std::size_t num_bytes = 0;  // moved; 0 and not ended: the socket isn't ready
  std::string ended;          // why the connection is over; empty while it is not
};
SocketStep send_step(int fd, const void* data, std::size_t size);
SocketStep receive_step(int fd, void* data, std::size_t size);  // `size` is not 0

// Waits until `fd`, a socket or not, is ready for `events` (poll(2)), has failed or ended. A signal
// doesn't end the wait. False if the deadline passed first.
bool wait_ready(int fd, short events, Deadline deadline);

// Whether it is ready now.
inline bool is_ready(int fd, short events) {
  return wait_ready(fd, events, Deadline(Clock::now()));
}

// The result of a name look-up that keeps a deadline. getaddrinfo(3) doesn't: with a silent name
// server it takes 10 s and more. So each look-up runs on a thread of its own, which nobody waits
// for.
struct NameLookup {
  std::vector<SocketAddress> addresses;
  std::string failure;  // set when there are none: as resolve() words it
};

// Calls `done` once, on the look-up's thread, perhaps after the caller has given up or main() has
// returned: it must own what it uses. Throws Error(kResourceExhausted) if there is no further
// thread.
void look_up_in_background(const Endpoint& endpoint, std::function<void(NameLookup)> done);

// Waits until the deadline at most. After that the look-up goes on, and its result is dropped. A
// numeric host is answered at once, without a thread.
NameLookup look_up(const Endpoint& endpoint, Deadline deadline);

// Sends a message on a Unix socket as send(2) with MSG_NOSIGNAL and MSG_DONTWAIT. The receiver gets
// a copy of `fd` with it (SCM_RIGHTS); −1: there is none.
long send_with_fd(int socket, std::string_view bytes, int fd);

struct FdMessage {
  long size = -1;  // as recv(2) returns it; −1: see errno
  UniqueFd fd;     // the first one that came; close-on-exec
  // A descriptor was sent, but this process had no room for it (ulimit -n).
  bool lost_fd = false;
};

// Receives a message as recv(2) with MSG_DONTWAIT.
FdMessage receive_with_fd(int socket, char* buffer, std::size_t size);

}  // namespace ddprun
