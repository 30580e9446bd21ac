// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/socket_bytes.h"

#include <dirent.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxDescriptors = 4096;  // of one process

// The states in the kernel's tcp_states.h in which a socket has a peer.
constexpr std::uint32_t kConnected = (1u << 1) | (1u << 4) | (1u << 5) | (1u << 8);

bool request(int socket, int family) {
  struct {
    nlmsghdr header;
    inet_diag_req_v2 body;
  } message{};
  message.header.nlmsg_len = sizeof message;
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  message.body.sdiag_family = static_cast<std::uint8_t>(family);
  message.body.sdiag_protocol = IPPROTO_TCP;
  message.body.idiag_ext = 1 << (INET_DIAG_INFO - 1);
  message.body.idiag_states = kConnected;
  return ::send(socket, &message, sizeof message, MSG_NOSIGNAL) == sizeof message;
}

// Returns the bytes that one socket moved, from its tcp_info. 0: an old kernel, whose struct is too
// short.
std::uint64_t bytes_of(const rtattr* attribute) {
  tcp_info info{};
  const std::size_t size = RTA_PAYLOAD(attribute);
  if (size < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received) return 0;
  std::memcpy(&info, RTA_DATA(attribute), std::min(size, sizeof info));
  return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

void read_socket(const nlmsghdr* header, SocketBytes& found) {
  const auto* message = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  auto left = static_cast<int>(header->nlmsg_len - NLMSG_LENGTH(sizeof *message));
  for (const auto* attribute = reinterpret_cast<const rtattr*>(message + 1);
       RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
    if (attribute->rta_type == INET_DIAG_INFO && message->idiag_inode != 0) {
      found[message->idiag_inode] = bytes_of(attribute);
    }
  }
}

// Adds the sockets of one address family. False: `found` doesn't have all of them.
bool add_family(int socket, int family, std::size_t limit, SocketBytes& found) {
  if (!request(socket, family)) return false;
  alignas(nlmsghdr) std::array<char, 32'768> buffer;
  while (found.size() <= limit) {
    // The kernel fills the buffer during the call, so nothing waits.
    const ssize_t size = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (size <= 0 || static_cast<std::size_t>(size) > buffer.size()) return false;
    auto left = static_cast<unsigned>(size);
    for (auto* header = reinterpret_cast<nlmsghdr*>(buffer.data()); NLMSG_OK(header, left);
         header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE) return true;
      if (header->nlmsg_type == NLMSG_ERROR) return false;
      read_socket(header, found);
    }
  }
  return false;
}

}  // namespace

std::optional<SocketBytes> tcp_socket_bytes(std::size_t limit) {
  const UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  SocketBytes found;
  const bool whole = socket && add_family(socket.get(), AF_INET, limit, found) &&
                     add_family(socket.get(), AF_INET6, limit, found);
  return whole ? std::optional(std::move(found)) : std::nullopt;
}

void add_socket_inodes(pid_t pid, std::size_t limit, std::vector<std::uint64_t>& out) {
  constexpr std::string_view kSocket = "socket:[";
  const std::string path = "/proc/" + std::to_string(pid) + "/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
  if (!directory) return;
  std::size_t count = 0;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (entry->d_name[0] == '.') continue;
    if (++count > limit) return;
    std::array<char, 64> target;
    const ssize_t size =
        ::readlinkat(::dirfd(directory.get()), entry->d_name, target.data(), target.size());
    const std::string_view text(target.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
    if (!text.starts_with(kSocket)) continue;
    std::uint64_t inode = 0;
    std::from_chars(text.data() + kSocket.size(), text.data() + text.size(), inode);
    if (inode != 0) out.push_back(inode);
  }
}

void SocketWatch::look(const std::vector<pid_t>& family, const SocketBytes& bytes) {
  std::vector<std::uint64_t> inodes;
  for (const pid_t pid : family) add_socket_inodes(pid, kMaxDescriptors, inodes);
  SocketBytes now;
  for (const std::uint64_t inode : inodes) {
    const auto found = bytes.find(inode);
    if (found == bytes.end() || !now.insert(*found).second) continue;
    const auto before = known_.find(inode);
    // A connection that is new since the last look began with 0.
    const std::uint64_t old = before == known_.end() ? 0 : before->second;
    if (is_known_ && found->second > old) moved_ += found->second - old;
  }
  known_ = std::move(now);
  is_known_ = true;
}

void SocketWatch::forget() {
  known_.clear();
  is_known_ = false;
}

}  // namespace ddprun::agent
