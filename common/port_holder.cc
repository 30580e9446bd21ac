// SPDX-License-Identifier: Apache-2.0
#include "common/port_holder.h"

#include <dirent.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "common/error.h"
#include "common/text.h"

namespace ddprun {
namespace {

constexpr char kListenState[] = "0A";  // TCP_LISTEN in /proc/net/tcp

struct DirCloser {
  void operator()(DIR* dir) const { ::closedir(dir); }
};
using Dir = std::unique_ptr<DIR, DirCloser>;

// Returns the inodes of the sockets that listen on `port`.
std::set<std::string> listening_inodes(std::uint16_t port) {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);  // the heading
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode;
      const auto colon = local.rfind(':');
      if (!fields || state != kListenState || colon == std::string::npos) continue;
      if (std::stoul(local.substr(colon + 1), nullptr, 16) == port) inodes.insert(inode);
    }
  }
  return inodes;
}

bool holds_one_of(const std::string& process, const std::set<std::string>& inodes) {
  const std::string folder = process + "/fd";
  const Dir fds(::opendir(folder.c_str()));
  if (!fds) return false;
  while (const dirent* entry = ::readdir(fds.get())) {
    std::array<char, 64> target{};
    const std::string path = folder + "/" + entry->d_name;
    const ssize_t length = ::readlink(path.c_str(), target.data(), target.size() - 1);
    if (length <= 0) continue;
    const std::string link(target.data(), static_cast<std::size_t>(length));
    constexpr char kPrefix[] = "socket:[";
    constexpr std::size_t kPrefixLength = sizeof(kPrefix) - 1;
    if (link.rfind(kPrefix, 0) != 0) continue;
    if (inodes.count(link.substr(kPrefixLength, link.size() - kPrefixLength - 1)) != 0) return true;
  }
  return false;
}

// Returns the port's listener, if /proc shows it to this user: "python3, pid 4711". "another user's
// process": the socket is seen, but not its owner. Empty: nothing listens there (any more).
std::string describe_port_holder(std::uint16_t port) {
  const std::set<std::string> inodes = listening_inodes(port);
  if (inodes.empty()) return {};
  const Dir processes(::opendir("/proc"));
  while (const dirent* entry = processes ? ::readdir(processes.get()) : nullptr) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    const std::string process = std::string("/proc/") + entry->d_name;
    if (!holds_one_of(process, inodes)) continue;
    std::string name;
    std::ifstream comm(process + "/comm");
    std::getline(comm, name);
    return name + ", pid " + entry->d_name;
  }
  return "another user's process";
}

}  // namespace

UniqueFd listen_or_name_holder(const SocketAddress& address) {
  try {
    return listen_on(address);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable || address.port() == 0) throw;
    const std::string holder = describe_port_holder(address.port());
    if (holder.empty()) throw;
    throw Error(ErrorCode::kUnavailable,
                concat("can't listen on ", address.text(), kInUseBy, holder));
  }
}

}  // namespace ddprun
