// SPDX-License-Identifier: Apache-2.0
#include "common/dangling_link.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "common/error.h"
#include "common/log.h"

namespace ddprun {

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

}  // namespace ddprun
