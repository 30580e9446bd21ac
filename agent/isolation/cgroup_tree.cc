// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/cgroup_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "common/log.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{1} << 20;

}  // namespace

RealCgroupTree::RealCgroupTree(std::string root) : root_(std::move(root)) {}

std::optional<std::string> RealCgroupTree::read(const std::string& path, int* error_number) const {
  int ignored;
  int& error = error_number != nullptr ? *error_number : ignored;
  error = 0;
  const UniqueFd file(::open((root_ + path).c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 16384> buffer;
  while (file && text.size() < kMostFileBytes) {
    const ssize_t size = ::read(file.get(), buffer.data(), buffer.size());
    if (size == 0) return text;
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  if (text.size() >= kMostFileBytes) return text;
  error = errno;
  return std::nullopt;
}

int RealCgroupTree::write(const std::string& path, const std::string& text) {
  const UniqueFd file(::open((root_ + path).c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (!file) return errno;
  ssize_t size;
  do {
    size = ::write(file.get(), text.data(), text.size());
  } while (size < 0 && errno == EINTR);
  if (size < 0) return errno;
  return static_cast<std::size_t>(size) == text.size() ? 0 : EIO;
}

int RealCgroupTree::make(const std::string& directory) {
  return ::mkdir((root_ + directory).c_str(), 0755) == 0 ? 0 : errno;
}

int RealCgroupTree::remove(const std::string& directory) {
  return ::rmdir((root_ + directory).c_str()) == 0 ? 0 : errno;
}

int RealCgroupTree::may_write(const std::string& path) const {
  return ::faccessat(AT_FDCWD, (root_ + path).c_str(), W_OK, AT_EACCESS) == 0 ? 0 : errno;
}

std::vector<std::string> RealCgroupTree::children(const std::string& directory) const {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir((root_ + directory).c_str()),
                                                    &::closedir);
  while (entries) {
    const dirent* entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != "..") names.push_back(name);
  }
  return names;
}

UniqueFd RealCgroupTree::open(const std::string& path) const {
  return UniqueFd(::open((root_ + path).c_str(), O_RDONLY | O_CLOEXEC));
}

// Which of the two can be read depends on who asks.
bool RealCgroupTree::is_marked_delegated(const std::string& directory) const {
  for (const char* name : {"trusted.delegate", "user.delegate"}) {
    char value = 0;
    const ssize_t size = ::getxattr((root_ + directory).c_str(), name, &value, 1);
    if (size == 1 && value == '1') return true;
  }
  return false;
}

std::string RealCgroupTree::device_number(const std::string& path) const {
  struct stat info {};
  if (::stat((root_ + path).c_str(), &info) != 0) return {};
  const dev_t device = S_ISBLK(info.st_mode) ? info.st_rdev : info.st_dev;
  if (major(device) == 0) return {};  // a file system without one: tmpfs, NFS, overlay
  return concat(major(device), ":", minor(device));
}

}  // namespace ddprun::agent
