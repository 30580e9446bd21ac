// SPDX-License-Identifier: Apache-2.0
#include "common/regular_file.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/error.h"
#include "common/fd_text.h"
#include "common/peer_user.h"
#include "common/random_id.h"
#include "common/text.h"

namespace ddprun {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "it is a directory, and no regular file";
  if (S_ISFIFO(mode)) return "it is a pipe, and no regular file";
  return "it is no regular file";
}

constexpr int kNeverWaits = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
constexpr int kAppends = O_WRONLY | O_CREAT | O_APPEND | kNeverWaits;

bool is_trusted_link(const struct stat& link) {
  return link.st_uid == ::geteuid() || link.st_uid == 0 || is_outsider(link.st_uid);
}

bool is_link_of_others(const std::string& path, struct stat& info) {
  return ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode) && !is_trusted_link(info);
}

// `fd` is the result of open(2) for `path`.
RegularFile opened(UniqueFd fd, const std::string& path) {
  RegularFile file{.fd = std::move(fd)};
  // A writer can't open a socket, nor a pipe without a reader.
  const bool is_odd = !file.fd && errno == ENXIO && ::stat(path.c_str(), &file.info) == 0;
  if (!is_odd && (!file.fd || ::fstat(file.fd.get(), &file.info) != 0)) {
    file.problem = opening_trouble(path, errno);
  } else if (is_odd || !S_ISREG(file.info.st_mode)) {
    file.problem = kind_of(file.info.st_mode);
  }
  if (!file.problem.empty()) file.fd.reset();
  return file;
}

// Removes O_NONBLOCK: workers also get the descriptor, and expect a usual one.
RegularFile as_any_other(RegularFile file) {
  if (file.fd) ::fcntl(file.fd.get(), F_SETFL, O_APPEND);
  return file;
}

}  // namespace

std::string dangling_link(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path so_far;
  for (const fs::path& part : fs::path(path)) {
    so_far /= part;
    const bool is_link = fs::is_symlink(fs::symlink_status(so_far, error));
    const bool is_there = fs::exists(so_far, error);
    if (is_link && !is_there && !error) {
      const fs::path target = fs::read_symlink(so_far, error);
      return concat(so_far.string(), " is a link to ", target.string(), ", which does not exist");
    }
    if (!is_there) return {};
  }
  return {};
}

std::string opening_trouble(const std::string& path, int error) {
  if (struct stat info{}; error == ELOOP && is_link_of_others(path, info)) {
    return concat("it is a link of user ", info.st_uid, ", who could lead it anywhere");
  }
  const std::string link = error == ENOENT ? one_line(dangling_link(path)) : "";
  return link.empty() ? errno_text(error) : link;
}

RegularFile open_regular_file(const std::string& path, int also) {
  RegularFile file = opened(UniqueFd(::open(path.c_str(), O_RDONLY | kNeverWaits | also)), path);
  if (S_ISFIFO(file.info.st_mode)) file.problem += ": write its content to one";
  return file;
}

bool is_link_of_others(const std::string& path) {
  struct stat info {};
  return is_link_of_others(path, info);
}

UniqueFd open_to_write(const std::string& path, int flags, mode_t mode) {
  constexpr int kMostLinks = 40;  // the kernel's limit
  std::filesystem::path at = path;
  for (int i = 0; i < kMostLinks; ++i) {
    UniqueFd fd(::open(at.c_str(), flags | O_NOFOLLOW, mode));
    if (fd || errno != ELOOP) return fd;
    // The link stays open, so that the checked link is also the one that is followed.
    const UniqueFd link(::open(at.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info {};
    struct statfs space {};
    std::string target(PATH_MAX, '\0');
    const bool is_link = link && ::fstat(link.get(), &info) == 0 && S_ISLNK(info.st_mode) &&
                         ::fstatfs(link.get(), &space) == 0;
    // /dev/stdout: no other user can make such a link.
    if (is_link && space.f_type == PROC_SUPER_MAGIC) {
      return UniqueFd(::open(at.c_str(), flags, mode));
    }
    const ssize_t size = is_link && is_trusted_link(info)
                             ? ::readlinkat(link.get(), "", target.data(), target.size())
                             : -1;
    if (size < 0) break;
    target.resize(static_cast<std::size_t>(size));
    at = at.parent_path() / target;
  }
  errno = ELOOP;
  return {};
}

RegularFile open_regular_file_to_append(const std::string& path, mode_t mode, int also) {
  return as_any_other(opened(open_to_write(path, kAppends | also, mode), path));
}

RegularFile open_regular_file_to_append_in(int folder, const std::string& name,
                                           const std::string& path, mode_t mode, int also) {
  const int flags = kAppends | O_NOFOLLOW | also;
  return as_any_other(opened(UniqueFd(::openat(folder, name.c_str(), flags, mode)), path));
}

std::string change_danger(const struct stat& info, Outsiders outsiders) {
  const bool is_trusted = info.st_uid == ::geteuid() || info.st_uid == 0 ||
                          (outsiders == Outsiders::kAsRoot && is_outsider(info.st_uid));
  if (!is_trusted) return concat("it belongs to user ", info.st_uid, ", who could change it");
  if ((info.st_mode & S_IWOTH) != 0) return "everybody could change it";
  const bool is_roots_group = info.st_gid == 0 || info.st_gid == ::getegid();
  if (::geteuid() == 0 && !is_roots_group && (info.st_mode & S_IWGRP) != 0) {
    return concat("group ", info.st_gid, " could change it");
  }
  return {};
}

std::string text_of_named_file(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  const RegularFile file = open_regular_file(path);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "can't read " + one_line(path) + ": " + why);
  };
  if (!file.problem.empty()) refuse(file.problem);
  ReadText read = read_text(file.fd.get(), kMostBytes + 1);
  if (read.error != 0) refuse(errno_text(read.error));
  if (read.text.size() > kMostBytes) refuse("it has more than 1 MiB");
  return std::move(read.text);
}

NewFile make_new_file(const std::string& prefix, mode_t mode) {
  NewFile file{.path = prefix + random_id().substr(0, 12), .fd = {}};
  // With O_EXCL no link is followed, either.
  file.fd.reset(::open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  return file;
}

void sync_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());
}

}  // namespace ddprun
