// SPDX-License-Identifier: Apache-2.0
#include "common/config_texts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/env_names.h"
#include "common/error.h"
#include "common/fd_text.h"
#include "common/regular_file.h"
#include "common/text.h"
#include "common/unique_fd.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;
constexpr char kSystemConfig[] = "/etc/ddprun/ddprun.toml";

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

[[noreturn]] void throw_unreadable(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "can't read " + one_line(path) + ": " + why);
}

enum class Absence { kPresent, kNotThere, kHidden };

// Returns the whole file, if `absence` says that it is there.
std::string read_config(const std::string& path, bool is_named, Absence* absence) {
  *absence = Absence::kPresent;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    const int error = errno;
    const bool is_hidden = error == EACCES && ::access(directory_of(path).c_str(), X_OK) != 0;
    if (error != ENOENT && error != ENOTDIR && !is_hidden) {
      throw_unreadable(path, errno_text(error));
    }
    *absence = is_hidden ? Absence::kHidden : Absence::kNotThere;
    return {};
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_unreadable(path, errno_text(errno));
  if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    throw_unreadable(path, "it is no regular file");
  }
  const std::string danger = is_named ? "" : change_danger(info, Outsiders::kAsRoot);
  if (!danger.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("won't obey ", one_line(path), ": ", danger,
                       ": make it yours or root's alone (chmod go-w), or set XDG_CONFIG_HOME"));
  }
  ReadText read = read_text(fd.get(), kMaxConfigBytes + 1);
  if (read.error != 0) throw_unreadable(path, errno_text(read.error));
  if (read.text.size() > kMaxConfigBytes) throw_unreadable(path, "it has more than 1 MiB");
  return std::move(read.text);
}

}  // namespace

std::vector<ConfigText> read_config_texts(const std::string& named,
                                          const Environment& environment) {
  std::vector<ConfigText> files;
  Absence absence = Absence::kPresent;
  if (!named.empty()) {
    const std::string text = read_config(named, true, &absence);
    if (absence != Absence::kPresent) {
      const std::string link = one_line(dangling_link(named));
      throw_unreadable(named, absence == Absence::kHidden ? "no permission to enter its directory"
                              : link.empty()              ? "there is no such file"
                                                          : link);
    }
    files.push_back({.path = named, .text = text});
  }
  std::vector<std::string> paths;
  if (const auto configs = user_directory(environment, env::kXdgConfigHome, ".config")) {
    paths.push_back(*configs + "/ddprun/ddprun.toml");
  }
  paths.emplace_back(kSystemConfig);
  for (const std::string& path : paths) {
    const std::string text = read_config(path, false, &absence);
    if (absence == Absence::kNotThere) continue;
    files.push_back({.path = path, .text = text, .is_hidden = absence == Absence::kHidden});
  }
  return files;
}

}  // namespace ddprun
