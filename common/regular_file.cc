// SPDX-License-Identifier: Apache-2.0
#include "common/regular_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "common/error.h"
#include "common/peer_user.h"
#include "common/text.h"

namespace ddprun {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "it is a directory, and no regular file";
  if (S_ISFIFO(mode)) return "it is a pipe, and no regular file";
  return "it is no regular file";
}

RegularFile opened(const std::string& path, int flags, mode_t mode) {
  RegularFile file;
  file.fd.reset(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode));
  // A writer can't open a socket, or a pipe without a reader.
  const bool is_odd = !file.fd && errno == ENXIO && ::stat(path.c_str(), &file.info) == 0;
  if (!is_odd && (!file.fd || ::fstat(file.fd.get(), &file.info) != 0)) {
    file.problem = opening_trouble(path, errno);
  } else if (is_odd || !S_ISREG(file.info.st_mode)) {
    file.problem = kind_of(file.info.st_mode);
  }
  if (!file.problem.empty()) file.fd.reset();
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
  const std::string link = error == ENOENT ? one_line(dangling_link(path)) : "";
  return link.empty() ? errno_text(error) : link;
}

RegularFile open_regular_file(const std::string& path) {
  RegularFile file = opened(path, O_RDONLY, 0);
  if (S_ISFIFO(file.info.st_mode)) file.problem += ": write its content to one";
  return file;
}

RegularFile open_regular_file_to_append(const std::string& path, mode_t mode, int also) {
  RegularFile file = opened(path, O_WRONLY | O_CREAT | O_APPEND | also, mode);
  // Workers get it, too: to them it is like any other file.
  if (file.fd) ::fcntl(file.fd.get(), F_SETFL, O_APPEND);
  return file;
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

}  // namespace ddprun
