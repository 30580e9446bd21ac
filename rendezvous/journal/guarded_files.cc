// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/journal/guarded_files.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "common/regular_file.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun::journal {

namespace fs = std::filesystem;

namespace {

std::string name_of(const std::string& process) {
  std::string name;
  std::ifstream file(concat("/proc/", process, "/comm"));
  std::getline(file, name);
  return name;
}

}  // namespace

bool is_unwritable(int error) {
  return error == EROFS || error == ENOSPC || error == EDQUOT || error == EIO;
}

void refuse_second(const fs::path& path, const std::string& holder) {
  throw_error(ErrorCode::kUnavailable, path.string(), " is in use by ", holder,
              "; give each ddprund a directory of its own");
}

void refuse_if_taken(const fs::path& path, int code) {
  constexpr off_t kLocks = 1 << 30, kNumLocks = 512;  // SQLite's lock bytes
  if ((code & 0xff) != SQLITE_BUSY && (code & 0xff) != SQLITE_LOCKED) return;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct flock held {};
  held.l_type = F_WRLCK;
  held.l_start = kLocks;
  held.l_len = kNumLocks;
  if (!fd || ::fcntl(fd.get(), F_GETLK, &held) != 0 || held.l_type == F_UNLCK) return;
  const std::string name = held.l_pid > 0 ? name_of(std::to_string(held.l_pid)) : "";
  if (!name.empty() && name != name_of("self")) return;
  refuse_second(path, held.l_pid > 0 ? concat("pid ", held.l_pid) : "another process");
}

std::string holder_of(int lock) {
  char text[64] = {};
  if (::pread(lock, text, sizeof text - 1, 0) <= 0) return "another process";
  const long pid = std::strtol(text, nullptr, 10);
  return pid > 0 ? concat("pid ", pid) : "another process";
}

void refuse_others(const fs::path& path, const struct stat& info) {
  const std::string danger = change_danger(info, Outsiders::kAsOthers);
  if (danger.empty()) return;
  throw_invalid("won't go on with ", path.string(), ": ", danger,
                " and run commands as the users of jobs: ",
                S_ISDIR(info.st_mode) ? "give ddprund a directory of its own (chmod 700)"
                                      : "give it to ddprund's user alone (chmod 600)");
}

UniqueFd open_file(const fs::path& file, int flags) {
  UniqueFd fd(::open(file.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600));
  if (!fd && errno == ELOOP) {
    throw_invalid("can't take ", file.string(),
                  ": it is a link, which ddprund does not follow; move it away, or name the "
                  "directory that it leads to");
  }
  if (!fd) return fd;
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_system_error("fstat " + file.string(), errno);
  if (!S_ISREG(info.st_mode)) {
    throw_invalid("can't take ", file.string(), ": it is no regular file; move it away");
  }
  refuse_others(file, info);
  return fd;
}

void fail_to_open(const fs::path& file, int error) {
  throw Error(is_unwritable(error) ? ErrorCode::kSystem : ErrorCode::kUnavailable,
              concat("can't write to ", file.string(), ": ", errno_text(error)));
}

void move_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (!error) return;
  throw_error(ErrorCode::kSystem, "can't rename ", from.string(), ": ", error.message());
}

}  // namespace ddprun::journal
