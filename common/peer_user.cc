// SPDX-License-Identifier: Apache-2.0
#include "common/peer_user.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "common/error.h"
#include "common/socket.h"
#include "common/text.h"
#include "common/unique_fd.h"

namespace ddprun {
namespace {

void put(const sockaddr_storage& from, bool as_v4, __be32* address, __be16* port) {
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    std::memcpy(address, &v4.sin_addr, sizeof v4.sin_addr);
    *port = v4.sin_port;
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&v6.sin6_addr);
    std::memcpy(address, bytes + (as_v4 ? 12 : 0), as_v4 ? 4 : 16);
    *port = v6.sin6_port;
  }
}

bool is_v4(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return true;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
}

// Asks the kernel for the user of a socket. If `ours` is null, that is the socket that listens at
// the peer's address. `device` is the index of the device to which the socket is bound
// (SO_BINDTODEVICE); 0: none.
std::optional<uid_t> ask(const sockaddr_storage* ours, const sockaddr_storage& peers,
                         unsigned device) {
  const bool as_v4 = is_v4(peers);
  const UniqueFd netlink(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink) return std::nullopt;
  struct {
    nlmsghdr head;
    inet_diag_req_v2 body;
  } request{};
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = as_v4 ? AF_INET : AF_INET6;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0u;
  inet_diag_sockid& id = request.body.id;
  put(peers, as_v4, id.idiag_src, &id.idiag_sport);  // the addresses as the peer's socket has them
  if (ours != nullptr) put(*ours, as_v4, id.idiag_dst, &id.idiag_dport);
  id.idiag_if = device;
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (::send(netlink.get(), &request, sizeof request, 0) != sizeof request) return std::nullopt;

  alignas(nlmsghdr) char answer[4096];
  const ssize_t size = ::recv(netlink.get(), answer, sizeof answer, 0);
  const auto* head = reinterpret_cast<const nlmsghdr*>(answer);
  if (size < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg))) ||
      head->nlmsg_type != SOCK_DIAG_BY_FAMILY) {
    return std::nullopt;
  }
  const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(head));
  if (found->idiag_inode == 0) return std::nullopt;  // closed, or not accepted yet: no user's
  return found->idiag_uid;
}

std::optional<uid_t> ask(int fd, bool is_of_listener) {
  try {
    const auto ours = local_address(fd).storage, peers = peer_address(fd).storage;
    if (ours.ss_family != AF_INET && ours.ss_family != AF_INET6) return std::nullopt;
    const sockaddr_storage* const of = is_of_listener ? nullptr : &ours;
    if (const auto user = ask(of, peers, 0)) return user;
    // Through this device all addresses of a machine reach each other.
    return ask(of, peers, ::if_nametoindex("lo"));
  } catch (const Error&) {
    return std::nullopt;  // it is no socket, or the peer has gone
  }
}

constexpr uid_t kOverflowUser = 65534;

// Whether systemd's DynamicUser= has assigned this user, as whom no person logs in. While it has,
// systemd keeps this file as a lock (src/core/dynamic-user.c). The number alone, 61184 to 65519,
// proves nothing: a site's directory may have given it to a person.
bool is_of_service(uid_t user) {
  struct stat lock {};
  const std::string path = concat("/run/systemd/dynamic-uid/", user);
  return ::lstat(path.c_str(), &lock) == 0 && S_ISREG(lock.st_mode) && lock.st_uid == 0;
}

}  // namespace

bool is_outsider(uid_t user) {
  if (user != kOverflowUser || user == ::geteuid()) return false;
  std::ifstream map("/proc/self/uid_map");
  std::uint64_t inside = 0, outside = 0, count = 0;
  return map >> inside >> outside >> count && count < 0xffffffff;
}

std::string user_namespace_hint() {
  return is_outsider(kOverflowUser) ? concat("; ", kUserNamespaceHint) : "";
}

std::optional<uid_t> peer_user(int fd) { return ask(fd, false); }

std::optional<uid_t> listener_user(const SocketAddress& address) {
  const int family = address.storage.ss_family;
  if (family != AF_INET && family != AF_INET6) return std::nullopt;
  return ask(nullptr, address.storage, 0);
}

std::string stranger_problem(int fd) {
  try {
    // For another machine's port the kernel might answer about a listener of this machine.
    if (!is_local_address(peer_address(fd))) return {};
  } catch (const Error&) {
    return {};  // the server has gone, so nothing of it is obeyed
  }
  auto user = peer_user(fd);
  if (!user) user = ask(fd, true);
  if (!user) return peer_users_are_known() ? kHiddenPeer : "";
  if (*user == 0 || *user == ::geteuid()) return {};
  if (is_of_service(*user) || is_outsider(*user)) return {};
  return concat("is a program of user ", *user,
                ", and proves nothing: anybody here could have taken its port. Give both sides "
                "--token-file or TLS, or take another port");
}

std::string commander_problem(int fd) {
  try {
    if (is_local_address(peer_address(fd))) return stranger_problem(fd);
  } catch (const Error&) {
    return {};  // the server has gone, so it receives nothing
  }
  return "is on another machine and proves nothing: anybody could answer in its place. Give both "
         "sides --token-file or TLS";
}

std::optional<uid_t> loopback_client(int fd) {
  try {
    if (!local_address(fd).is_loopback() || !peer_users_are_known()) return std::nullopt;
  } catch (const Error&) {
    return kNobody;
  }
  const auto user = peer_user(fd);
  return user && !is_outsider(*user) ? *user : kNobody;
}

std::string loopback_client_problem(int fd, uid_t owner) {
  const auto user = loopback_client(fd);
  if (!user || *user == 0 || *user == owner) return {};
  return concat("without a token only programs of user ", owner,
                " and root are served here over loopback, and ",
                *user == kNobody ? "this one's is not known: it has gone, or is outside of "
                                   "this user namespace"
                                 : concat("this one is of user ", *user));
}

bool peer_users_are_known() {
  // A definite result is kept. A test that can't be made, for example without a free port, shows
  // nothing.
  enum class Seen { kNothing, kKnown, kUnknown };
  static std::atomic<Seen> seen{Seen::kNothing};
  if (seen != Seen::kNothing) return seen == Seen::kKnown;
  try {
    const UniqueFd listener = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
    const SocketAddress address = local_address(listener.get());
    const UniqueFd here(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto* to = reinterpret_cast<const sockaddr*>(&address.storage);
    if (!here || ::connect(here.get(), to, address.length) != 0) return true;
    const UniqueFd there(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!there) return true;
    seen = peer_user(there.get()) == ::geteuid() ? Seen::kKnown : Seen::kUnknown;
  } catch (const Error&) {
    return true;
  }
  return seen == Seen::kKnown;
}

}  // namespace ddprun
