// SPDX-License-Identifier: Apache-2.0
#include "common/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "common/error.h"
#include "common/interfaces.h"
#include "common/quiet_thread.h"
#include "common/send_descriptors.h"
#include "common/text.h"
#include "common/wall_time.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;

const in6_addr* v6_address(const SocketAddress& address) {
  return address.storage.ss_family == AF_INET6
             ? &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr
             : nullptr;
}

// Writes the IPv4 address of a plain or v4-mapped socket address to `out`, in network order.
bool v4_address(const SocketAddress& address, in_addr* out) {
  if (address.storage.ss_family == AF_INET) {
    *out = reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr;
    return true;
  }
  const in6_addr* v6 = v6_address(address);
  if (!v6 || !IN6_IS_ADDR_V4MAPPED(v6)) return false;
  std::memcpy(out, v6->s6_addr + 12, sizeof *out);
  return true;
}

// Returns this end of a connection or the other one; `ask` is the call for it.
SocketAddress end_of(int fd, int (*ask)(int, sockaddr*, socklen_t*), const char* name) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (ask(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    throw_system_error(name, errno);
  }
  return address;
}

bool same_host(const SocketAddress& a, const SocketAddress& b) {
  in_addr a4{}, b4{};
  const bool a_is_v4 = v4_address(a, &a4), b_is_v4 = v4_address(b, &b4);
  if (a_is_v4 || b_is_v4) return a_is_v4 && b_is_v4 && a4.s_addr == b4.s_addr;
  const in6_addr *a6 = v6_address(a), *b6 = v6_address(b);
  return a6 && b6 && std::memcmp(a6, b6, sizeof *a6) == 0;
}

NameLookup look_up_now(const Endpoint& endpoint) {
  try {
    return {resolve(endpoint), {}};
  } catch (const Error& error) {
    return {{}, error.what()};
  }
}

bool is_numeric(const std::string& host) {
  in6_addr address;
  return host.empty() || ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

struct Control {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> bytes{};
};

}  // namespace

std::uint16_t SocketAddress::port() const {
  // sin_port and sin6_port have the same offset.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
}

bool SocketAddress::is_loopback() const {
  in_addr v4;
  if (v4_address(*this, &v4)) return (ntohl(v4.s_addr) >> 24) == 127;
  const in6_addr* v6 = v6_address(*this);
  return v6 && IN6_IS_ADDR_LOOPBACK(v6);
}

bool SocketAddress::is_any() const {
  in_addr v4;
  if (v4_address(*this, &v4)) return v4.s_addr == INADDR_ANY;
  const in6_addr* v6 = v6_address(*this);
  return v6 && IN6_IS_ADDR_UNSPECIFIED(v6);
}

std::string SocketAddress::host_text() const {
  char buffer[INET6_ADDRSTRLEN] = "";
  in_addr v4;
  if (v4_address(*this, &v4)) {
    ::inet_ntop(AF_INET, &v4, buffer, sizeof buffer);
  } else if (const in6_addr* v6 = v6_address(*this)) {
    ::inet_ntop(AF_INET6, v6, buffer, sizeof buffer);
    // A link-local address is valid only with its interface.
    char name[IF_NAMESIZE] = "";
    const auto scope = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_scope_id;
    if (scope != 0 && ::if_indextoname(scope, name)) return concat(buffer, '%', name);
  } else {
    return "(local)";
  }
  return buffer;
}

std::string SocketAddress::text() const {
  return to_string(Endpoint{.host = host_text(), .port = port()});
}

std::vector<SocketAddress> resolve(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(endpoint.port);
  const char* host = endpoint.host.empty() ? nullptr : endpoint.host.c_str();
  const int failure = ::getaddrinfo(host, port.c_str(), &hints, &found);
  if (failure != 0) {
    throw Error(ErrorCode::kUnavailable,
                "can't resolve host name \"" + endpoint.host + "\": " + ::gai_strerror(failure));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry; entry = entry->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

bool is_local_address(const SocketAddress& address) {
  if (address.is_loopback()) return true;
  for (const InterfaceAddress& own : interface_addresses()) {
    if (same_host(own.address, address)) return true;
  }
  return false;
}

UniqueFd listen_on(const SocketAddress& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_system_error("socket", errno);
  const int one = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const auto* where = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::bind(fd.get(), where, address.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE) {
      throw Error(ErrorCode::kUnavailable,
                  address.port() != 0
                      ? "address in use: " + address.text()
                      : concat("no port is free at ", address.host_text(),
                               ": all of net.ipv4.ip_local_port_range are in use (ss -tan shows "
                               "who has them)"));
    }
    const std::string what = "can't listen on " + address.text();
    if (errno == EACCES) {
      throw Error(ErrorCode::kInvalidArgument, what + ": " + errno_text(errno) +
                                                   " (a port below 1024 needs root: take another)");
    }
    throw_system_error(what, errno);
  }
  return fd;
}

SocketAddress local_address(int fd) { return end_of(fd, ::getsockname, "getsockname"); }
SocketAddress peer_address(int fd) { return end_of(fd, ::getpeername, "getpeername"); }

std::string peer_text(int fd) {
  try {
    return peer_address(fd).text();
  } catch (const Error&) {
    return "a peer that has gone";
  }
}

int connect_once(const SocketAddress& address, Deadline deadline, UniqueFd* out) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno;
  const int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  const auto* target = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(fd.get(), target, address.length) != 0 && errno != EINPROGRESS) return errno;
  if (!wait_ready(fd.get(), POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) *out = std::move(fd);
  return error;
}

UniqueFd connect_to_any(const std::vector<SocketAddress>& addresses, Clock::duration patience,
                        Deadline deadline, std::string* failure) {
  failure->clear();
  auto left = static_cast<Clock::rep>(addresses.size());
  for (const SocketAddress& address : addresses) {
    const Clock::duration share = addresses.size() == 1
                                      ? deadline.remaining()
                                      : std::min(patience, deadline.remaining() / left);
    --left;
    UniqueFd fd;
    const int error = connect_once(address, Deadline::after(share), &fd);
    if (fd) return fd;
    const std::string why = error == ETIMEDOUT ? "no answer (packets dropped?)" : errno_text(error);
    *failure += concat(failure->empty() ? "" : "; ", address.text(), ": ", why);
  }
  return {};
}

UniqueFd connect_to(const Endpoint& endpoint, Deadline deadline) {
  const Clock::time_point start = Clock::now();
  milliseconds backoff{10};
  milliseconds patience{1'000};  // grows with each round, for slow networks
  std::string last_failure;
  do {
    try {
      UniqueFd fd = connect_to_any(resolve(endpoint), patience, deadline, &last_failure);
      if (fd) return fd;
      patience = std::min(patience * 2, milliseconds{30'000});
    } catch (const Error& error) {
      last_failure = error.what();
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(backoff, deadline.remaining()));
    backoff = std::min(backoff * 2, milliseconds{500});
  } while (!deadline.expired());
  const double seconds = seconds_in_tenths(Clock::now() - start);
  throw Error(ErrorCode::kUnavailable, concat("can't connect to ", to_string(endpoint),
                                              " (tried for ", seconds, " s): ", last_failure));
}

bool is_of_one_connection(int accept_error) {
  constexpr std::array kErrors{EINTR,       ECONNABORTED, EPROTO,       ENOPROTOOPT,
                               EOPNOTSUPP,  EHOSTDOWN,    EHOSTUNREACH, ENETDOWN,
                               ENETUNREACH, ENONET,       ETIMEDOUT};
  return std::find(kErrors.begin(), kErrors.end(), accept_error) != kErrors.end();
}

std::string accept_trouble(int accept_error) {
  const bool lacks_descriptors = accept_error == EMFILE || accept_error == ENFILE;
  return concat(errno_text(accept_error),
                lacks_descriptors
                    ? "; goes on when others close (raise the limit of open files: ulimit -Hn, "
                      "LimitNOFILE=; said once)"
                    : "; tries again ten times a second (said once)");
}

SocketStep send_step(int fd, const void* data, std::size_t size) {
  for (;;) {
    const ssize_t sent = ::send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return {.num_bytes = static_cast<std::size_t>(sent), .ended = {}};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    if (errno != EINTR) return {.num_bytes = 0, .ended = errno_text(errno)};
  }
}

SocketStep receive_step(int fd, void* data, std::size_t size) {
  for (;;) {
    const ssize_t received = ::recv(fd, data, size, MSG_DONTWAIT);
    if (received > 0) return {.num_bytes = static_cast<std::size_t>(received), .ended = {}};
    if (received == 0) return {.num_bytes = 0, .ended = "the peer closed it"};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    if (errno != EINTR) return {.num_bytes = 0, .ended = errno_text(errno)};
  }
}

void send_all(int fd, const void* data, std::size_t size, Deadline deadline) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const SocketStep step = send_step(fd, next, size);
    if (!step.ended.empty()) {
      throw Error(ErrorCode::kConnectionLost, "connection lost while sending: " + step.ended);
    }
    if (step.num_bytes == 0 && !wait_ready(fd, POLLOUT, deadline)) {
      throw Error(ErrorCode::kTimeout, "peer did not take our data before the deadline");
    }
    next += step.num_bytes;
    size -= step.num_bytes;
  }
}

void receive_all(int fd, void* data, std::size_t size, Deadline deadline) {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    const SocketStep step = receive_step(fd, next, size);
    if (!step.ended.empty()) {
      throw Error(ErrorCode::kConnectionLost, "connection lost: " + step.ended);
    }
    if (step.num_bytes == 0 && !wait_ready(fd, POLLIN, deadline)) {
      throw Error(ErrorCode::kTimeout, "no answer before the deadline");
    }
    next += step.num_bytes;
    size -= step.num_bytes;
  }
}

bool wait_ready(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, deadline.poll_timeout_ms());
    if (ready > 0) return true;
    if (ready == 0) {
      if (deadline.expired()) return false;
    } else if (errno != EINTR) {
      throw_system_error("poll", errno);
    }
  }
}

void look_up_in_background(const Endpoint& endpoint, std::function<void(NameLookup)> done) {
  start_quiet_thread("ddprun-names", [endpoint, done = std::move(done)] {
    done(look_up_now(endpoint));
  }).detach();
}

NameLookup look_up(const Endpoint& endpoint, Deadline deadline) {
  if (is_numeric(endpoint.host)) return look_up_now(endpoint);
  // Shared with the look-up's thread.
  const auto answer = std::make_shared<std::promise<NameLookup>>();
  std::future<NameLookup> waiting = answer->get_future();
  look_up_in_background(endpoint,
                        [answer](NameLookup found) { answer->set_value(std::move(found)); });
  if (waiting.wait_until(deadline.at()) == std::future_status::ready) return waiting.get();
  return {{}, concat("can't resolve host name \"", endpoint.host, "\": no answer in time")};
}

long send_with_fd(int socket, std::string_view bytes, int fd) {
  return send_descriptors(socket, bytes.data(), bytes.size(), &fd, fd < 0 ? 0 : 1);
}

FdMessage receive_with_fd(int socket, char* buffer, std::size_t size) {
  iovec part{.iov_base = buffer, .iov_len = size};
  Control control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  FdMessage result;
  result.size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (result.size < 0) return result;
  result.lost_fd = (message.msg_flags & MSG_CTRUNC) != 0;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    result.fd.reset(fd);
  }
  return result;
}

}  // namespace ddprun
