// SPDX-License-Identifier: Apache-2.0
// Counts the bytes that TCP sockets have moved. send() and recv() don't show in /proc/PID/io, so
// the kernel is asked for its counters (NETLINK_SOCK_DIAG). Waits for nothing.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace ddprun::agent {

// The payload sent (and acknowledged) and received since the connection began, by the socket's
// inode.
using SocketBytes = std::unordered_map<std::uint64_t, std::uint64_t>;

// Reads the open TCP connections of this network namespace, at most `limit`, for which a look takes
// about 10 ms. nullopt: there are more, or the kernel doesn't say.
std::optional<SocketBytes> tcp_socket_bytes(std::size_t limit = 16'384);

// Appends the inodes of the sockets among the first `limit` open descriptors of the process.
// Appends nothing if it has ended or is another user's.
void add_socket_inodes(pid_t pid, std::size_t limit, std::vector<std::uint64_t>& out);

// Counts the bytes that one family of processes moved over TCP while it was looked at.
class SocketWatch {
 public:
  // `bytes` are the present ones of tcp_socket_bytes(). The first look and the first after
  // forget() count nothing, since they don't know what was moved before.
  void look(const std::vector<pid_t>& family, const SocketBytes& bytes);
  void forget();

  std::uint64_t moved() const { return moved_; }  // in all; never goes back

 private:
  SocketBytes known_;
  bool is_known_ = false;
  std::uint64_t moved_ = 0;
};

}  // namespace ddprun::agent
