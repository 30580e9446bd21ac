// SPDX-License-Identifier: Apache-2.0
// Blocking TCP with a deadline on every call. Code that may not use Asio (the SDK, the store
// client) uses it, and so do the few synchronous steps of the daemons. Never a reverse look-up.
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
  std::string host_text() const;  // numeric; "::ffff:1.2.3.4" is printed as "1.2.3.4"
  std::string text() const;       // numeric "host:port"
};

// Addresses of endpoint.host (numeric or a name; forward look-up only), each with endpoint.port.
// An empty host means loopback. Throws Error(kUnavailable) naming the host.
std::vector<SocketAddress> resolve(const Endpoint& endpoint);

// True where `address` is on one of this machine's interfaces (loopback included).
bool is_local_address(const SocketAddress& address);

// Listening sockets are non-blocking and close-on-exec, with SO_REUSEADDR and backlog SOMAXCONN.
// Throws Error(kUnavailable) "address in use" or "no port is free", Error(kInvalidArgument) where
// the port needs a privilege, or as throw_system_error.
UniqueFd listen_on(const SocketAddress& address);

SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);
std::string peer_text(int fd);  // for a log; also where the peer has gone

// A connected, close-on-exec, TCP_NODELAY socket in non-blocking mode (use the calls below).
// Refused connections and unresolved names are retried with back-off until the deadline, since the
// peer may be starting. Throws Error(kUnavailable): who was tried, for how long, the last failure.
// A name is looked up anew for each round of attempts. The resolver, getaddrinfo(3), takes no
// deadline. A silent name server delays this beyond the deadline, by the resolver's own time-outs
// (resolv.conf: timeout × attempts for each server, 10 s by default). Numeric hosts never wait.
UniqueFd connect_to(const Endpoint& endpoint, Deadline deadline);

// One attempt at one address, for code with retries of its own. Returns 0 and the socket in `out`,
// or errno: ETIMEDOUT where the deadline passed.
int connect_once(const SocketAddress& address, Deadline deadline, UniqueFd* out);

// One attempt at each of `addresses`, in order. Several share the time evenly, each at most
// `patience`: one that drops packets must not hide the others. Not connected: an empty descriptor;
// *failure says why, for each address.
UniqueFd connect_to_any(const std::vector<SocketAddress>& addresses, Clock::duration patience,
                        Deadline deadline, std::string* failure);

// True: accept(2) failed because of that one connection. It is gone, as its own end says; the next
// one may be better. False: the cause is this process or system.
bool is_of_one_connection(int accept_error);

// Text for any other error of accept(2): what it is, and when accepting goes on. Without a free
// descriptor that is when other connections close.
std::string accept_trouble(int accept_error);

// Writes or reads exactly `size` bytes. Throws Error(kTimeout) or Error(kConnectionLost); after
// either the stream's position is unknown: close it.
void send_all(int fd, const void* data, std::size_t size, Deadline deadline);
void receive_all(int fd, void* data, std::size_t size, Deadline deadline);

// One attempt that never waits, for code with waits of its own.
struct SocketStep {
  std::size_t num_bytes = 0;  // moved; 0 and not ended: the socket isn't ready
  std::string ended;          // why the connection is over; empty while it is not
};
SocketStep send_step(int fd, const void* data, std::size_t size);
SocketStep receive_step(int fd, void* data, std::size_t size);  // `size` is not 0

// Waits until `fd`, be it a socket or not, is ready for `events` (poll(2)), has failed or ended; a
// signal doesn't end the wait. False when the deadline passed first.
bool wait_ready(int fd, short events, Deadline deadline);

// Whether it is now.
inline bool is_ready(int fd, short events) {
  return wait_ready(fd, events, Deadline(Clock::now()));
}

// Name look-ups that keep a deadline, which getaddrinfo(3) doesn't: where a name server is silent
// it takes 10 s and more. Each runs on a thread of its own, which nobody waits for.
struct NameLookup {
  std::vector<SocketAddress> addresses;
  std::string failure;  // set when there are none: as resolve() words it
};

// Calls `done` once, on the look-up's thread, maybe after the caller has given up or main() has
// returned: it must own what it touches. Throws Error(kResourceExhausted): no further thread.
void look_up_in_background(const Endpoint& endpoint, std::function<void(NameLookup)> done);

// Waits until the deadline at most; after it the look-up goes on by itself, unheard. A numeric host
// is answered at once, without a thread.
NameLookup look_up(const Endpoint& endpoint, Deadline deadline);

// Messages on a Unix socket that carry a descriptor (SCM_RIGHTS). As send(2) with MSG_NOSIGNAL and
// MSG_DONTWAIT, together with `fd`, of which the receiver gets a copy; −1: none.
long send_with_fd(int socket, std::string_view bytes, int fd);

struct FdMessage {
  long size = -1;  // as recv(2) returns it; −1: see errno
  UniqueFd fd;     // the first one that came; closed on exec
  // One was sent, and this process had no room for it (ulimit -n).
  bool lost_fd = false;
};

// As recv(2) with MSG_DONTWAIT.
FdMessage receive_with_fd(int socket, char* buffer, std::size_t size);

}  // namespace ddprun
