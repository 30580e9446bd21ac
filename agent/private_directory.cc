// SPDX-License-Identifier: Apache-2.0
#include "agent/private_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "common/error.h"
#include "common/random_id.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kPrefix = "ddprun-";
constexpr std::size_t kDigits = 12;
// A temporary directory with more entries than this is not searched for leftovers.
constexpr int kMostEntries = 10'000;

bool is_directory_name(std::string_view name) {
  if (name.size() != kPrefix.size() + kDigits || !name.starts_with(kPrefix)) return false;
  return name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

UniqueFd open_directory(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace

std::string new_directory_name(const std::string& parent) {
  return parent + "/" + std::string(kPrefix) + random_id().substr(0, kDigits);
}

UniqueFd make_locked_directory(const std::string& path) {
  for (;;) {
    if (::mkdir(path.c_str(), S_IRWXU) != 0) throw_system_error("mkdir " + path, errno);
    // Before the directory is locked, another agent may take it for a leftover. It then holds the
    // lock until it has removed it.
    UniqueFd directory = open_directory(path);
    if (!directory && errno != ENOENT) throw_system_error("open " + path, errno);
    struct stat info {};
    const bool is_there =
        directory && (::flock(directory.get(), LOCK_EX) != 0 ||
                      (::fstat(directory.get(), &info) == 0 && info.st_nlink > 0));
    if (is_there) return directory;
  }
}

void remove_leftover_directories(const std::string& parent) {
  std::error_code error;
  std::filesystem::directory_iterator entry(parent, error);
  for (int seen = 0;
       !error && entry != std::filesystem::directory_iterator() && seen < kMostEntries;
       entry.increment(error), ++seen) {
    if (!is_directory_name(entry->path().filename().string())) continue;
    const UniqueFd directory = open_directory(entry->path().string());
    struct stat info {};
    const bool is_ours =
        directory && ::fstat(directory.get(), &info) == 0 && info.st_uid == ::geteuid();
    if (!is_ours || ::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) continue;
    std::error_code ignored;
    std::filesystem::remove_all(entry->path(), ignored);
  }
}

}  // namespace ddprun::agent
