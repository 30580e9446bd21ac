// SPDX-License-Identifier: Apache-2.0
#include "launcher/standing/supervisor_leaf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "common/error.h"
#include "common/log.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

constexpr char kLeaf[] = "ddprun-supervisor";  // ddprun's, too
constexpr char kMount[] = "/sys/fs/cgroup";

// systemd marks what it has given away; who isn't root can't read one of the two.
bool is_delegated(const std::string& cgroup) {
  for (const char* mark : {"user.delegate", "trusted.delegate"}) {
    std::array<char, 8> value{};
    if (::getxattr(cgroup.c_str(), mark, value.data(), value.size()) == 1 && value[0] == '1') {
      return true;
    }
  }
  return false;
}

}  // namespace

std::optional<std::string> supervisor_leaf(std::string_view own_cgroups, const std::string& mount) {
  constexpr std::string_view kUnified = "0::";
  while (!own_cgroups.empty()) {
    const std::size_t end = own_cgroups.find('\n');
    const std::string_view line = own_cgroups.substr(0, end);
    own_cgroups.remove_prefix(end == own_cgroups.npos ? own_cgroups.size() : end + 1);
    if (!line.starts_with(kUnified)) continue;
    const std::string_view path = line.substr(kUnified.size());
    if (path == "/" || path.ends_with(concat("/", kLeaf))) return std::nullopt;
    return concat(mount, path, "/", kLeaf);
  }
  return std::nullopt;
}

std::string enter_supervisor_leaf() {
  std::ostringstream own;
  own << std::ifstream("/proc/self/cgroup").rdbuf();
  const auto leaf = supervisor_leaf(own.str(), kMount);
  if (!leaf || !is_delegated(leaf->substr(0, leaf->rfind('/')))) return {};
  if (::mkdir(leaf->c_str(), 0755) != 0 && errno != EEXIST) {
    return concat("can't make ", *leaf, ": ", errno_text(errno));
  }
  const std::string members = *leaf + "/cgroup.procs";
  const UniqueFd fd(::open(members.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd && ::write(fd.get(), "0", 1) == 1) return {};
  return concat("can't enter ", *leaf, ": ", errno_text(errno));
}

}  // namespace ddprun::launcher
