// SPDX-License-Identifier: Apache-2.0
#include "bench/store/bench_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/process_stat.h"
#include "rendezvous/store/request.h"

namespace ddprun::bench {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

UniqueFd bound_socket(int flags) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!fd) die("socket: " + std::string(std::strerror(errno)));
  const int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  const linger by_reset{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &by_reset, sizeof by_reset);
  // The source port is chosen here. connect() searches for a free one longer and longer as they are
  // used up. That would be the client's time and not the server's. All from 127.0.0.1, which
  // /etc/hosts names: PyTorch's server asks for the name of every peer.
  static std::uint16_t source_port = 10'000;
  sockaddr_in address{};
  do {
    if (++source_port == 65'535) source_port = 10'000;
    address = loopback(source_port);
  } while (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0);
  return fd;
}

}  // namespace

std::vector<std::string> handshake_requests() {
  return {store::encoded({.opcode = store::Opcode::kValidate, .word = store::kValidateMagic}),
          store::encoded({.opcode = store::Opcode::kPing, .word = 1})};
}

void die(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

double cpu_seconds(int pid) {
  ProcessStat stat;
  if (!read_process_stat(pid, &stat)) die("no process " + std::to_string(pid));
  return static_cast<double>(stat.cpu_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

UniqueFd connect_blocking(int port) {
  UniqueFd fd = bound_socket(0);
  connect_to(fd.get(), port);
  return fd;
}

UniqueFd make_nonblocking() { return bound_socket(SOCK_NONBLOCK); }

void connect_to(int fd, int port) {
  const sockaddr_in address = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno != EINPROGRESS) {
    die("connect to port " + std::to_string(port) + ": " + std::strerror(errno));
  }
}

void send_bytes(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) die("send: " + std::string(std::strerror(errno)));
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void receive_bytes(int fd, std::size_t size) {
  char buffer[4096];
  while (size > 0) {
    const ssize_t received = ::recv(fd, buffer, std::min(size, sizeof buffer), 0);
    if (received <= 0) die("the server closed the connection");
    size -= static_cast<std::size_t>(received);
  }
}

void shake_hands(int fd) {
  for (const std::string& request : handshake_requests()) send_bytes(fd, request);
  receive_bytes(fd, kHandshakeReplyBytes);
}

}  // namespace ddprun::bench
