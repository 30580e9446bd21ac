// SPDX-License-Identifier: Apache-2.0
#include "common/regular_file.h"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "common/error.h"
#include "common/text.h"

namespace ddprun {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "it is a directory, and no regular file";
  if (S_ISFIFO(mode)) return "it is a pipe, and no regular file: write its content to one";
  return "it is no regular file";
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
  RegularFile file;
  file.fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.fd || ::fstat(file.fd.get(), &file.info) != 0) {
    file.problem = opening_trouble(path, errno);
  } else if (!S_ISREG(file.info.st_mode)) {
    file.problem = kind_of(file.info.st_mode);
  }
  if (!file.problem.empty()) file.fd.reset();
  return file;
}

}  // namespace ddprun
