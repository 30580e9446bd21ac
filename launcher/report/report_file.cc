// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/report_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/error.h"
#include "common/random_id.h"
#include "launcher/terminal_text.h"
#include "launcher/with_host_name.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNameBytes = 200;  // with what is put before and behind it: a file's name

// "" or errno's text.
std::string write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return errno_text(size < 0 ? errno : ENOSPC);
    text.remove_prefix(static_cast<std::size_t>(size));
  }
  return {};
}

// Also of a link that leads to no file yet.
fs::path behind_links(fs::path path) {
  constexpr int kMostLinks = 40;  // as the kernel has it
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

void sync_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());  // file systems without it keep the order by themselves
}

}  // namespace

ReportFile::ReportFile(std::string path) : path_(std::move(path)) {
  if (is_stdout()) return;
  path_ = with_host_name(std::move(path_));
  std::error_code error;
  const fs::path absolute = fs::absolute(path_, error);
  struct stat facts {};
  const bool exists = ::stat(absolute.c_str(), &facts) == 0;
  const bool is_odd = exists && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode);
  const std::string text = absolute.string();
  is_fifo_ = exists && S_ISFIFO(facts.st_mode);
  is_direct_ = is_odd || text.starts_with("/dev/fd/") || text.starts_with("/proc/") ||
               text == "/dev/stdout" || text == "/dev/stderr";
  path_ = is_direct_ ? text : behind_links(absolute).string();
}

UniqueFd ReportFile::open_direct() const {
  return UniqueFd(::open(path_.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

std::string ReportFile::temporary_path() const {
  const fs::path path(path_);
  const std::string name = path.filename().string().substr(0, kMostNameBytes);
  return (path.parent_path() / ("." + name + "." + random_id().substr(0, 12))).string();
}

std::string ReportFile::problem() const {
  if (is_stdout()) return {};
  // To open a named pipe would be to its reader as if it had been written.
  if (is_direct_ && !is_fifo_) return open_direct() ? "" : errno_text(errno);
  std::error_code error;
  if (fs::is_directory(path_, error)) return "is a directory";
  const bool exists = fs::exists(path_, error);
  const std::string looked_at = exists ? path_ : fs::path(path_).parent_path().string();
  return ::access(looked_at.c_str(), W_OK) == 0 ? "" : errno_text(errno);
}

std::string ReportFile::problem_by_trial() const {
  std::string found = problem();
  if (!found.empty() || is_stdout() || is_direct_) return found;
  const std::string temporary = temporary_path();
  const UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return errno_text(errno);
  found = write_all(file.get(), std::string(4096, '\0'));
  ::unlink(temporary.c_str());
  return found;
}

void ReportFile::begin() {
  if (is_direct_) {
    direct_ = open_direct();
  } else if (!is_stdout()) {
    ::unlink(path_.c_str());
  }
}

std::string ReportFile::write(const std::string& text) {
  if (is_stdout()) return write_to_stdout(text) ? "" : "not all of it was taken";
  if (is_direct_) {
    if (!direct_) direct_ = open_direct();
    if (!direct_) return errno == ENXIO ? "nobody reads it" : errno_text(errno);
    return write_within(direct_.get(), text, kLastLinesPatience) ? "" : "not all of it was taken";
  }
  const std::string temporary = temporary_path();
  std::string problem = replace(text, temporary);
  if (!problem.empty()) ::unlink(temporary.c_str());
  return problem;
}

std::string ReportFile::replace(const std::string& text, const std::string& temporary) const {
  UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) return errno_text(errno);
  if (std::string problem = write_all(file.get(), text); !problem.empty()) return problem;
  if (::fsync(file.get()) != 0 && errno != EINVAL && errno != ENOTSUP) return errno_text(errno);
  file.reset();
  if (::rename(temporary.c_str(), path_.c_str()) != 0) return errno_text(errno);
  sync_directory(fs::path(path_).parent_path().string());
  return {};
}

}  // namespace ddprun::launcher
