// SPDX-License-Identifier: Apache-2.0
#include "agent/output/log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

namespace ddprun::agent {

UniqueFd open_log_file(const std::string& path) {
  // O_APPEND: two processes that write to one file don't overwrite each other.
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
}

LogFile::LogFile(std::string path, LogFileOptions options)
    : path_(std::move(path)), options_(std::move(options)), fd_(open_log_file(path_)) {}

void LogFile::write(std::string_view bytes) {
  while (options_.max_bytes > 0 && size_ + bytes.size() > options_.max_bytes) {
    const std::uint64_t room = options_.max_bytes - std::min(size_, options_.max_bytes);
    std::size_t cut = room == 0 ? std::string_view::npos : bytes.rfind('\n', room - 1);
    if (cut == std::string_view::npos && size_ == 0) cut = bytes.find('\n');
    if (cut == std::string_view::npos && size_ == 0) cut = bytes.size() - 1;
    if (cut != std::string_view::npos) {
      write_now(bytes.substr(0, cut + 1));
      bytes.remove_prefix(cut + 1);
    }
    if (bytes.empty()) return;
    rotate();
  }
  write_now(bytes);
}

void LogFile::write_now(std::string_view bytes) {
  if (!fd_) fd_ = open_log_file(path_);
  while (!bytes.empty()) {
    const ssize_t written = fd_ ? ::write(fd_.get(), bytes.data(), bytes.size()) : -1;
    if (written > 0) {
      size_ += static_cast<std::uint64_t>(written);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      if (options_.lost) options_.lost(path_, errno, bytes.size());
      return;
    }
  }
}

// Where a part can't be renamed the file is begun anew all the same: the bound is kept.
void LogFile::rotate() {
  const auto part = [this](int number) { return path_ + "." + std::to_string(number); };
  for (int number = options_.keep; number > 0; --number) {
    ::rename((number == 1 ? path_ : part(number - 1)).c_str(), part(number).c_str());
  }
  fd_ = open_log_file(path_);
  size_ = 0;
}

}  // namespace ddprun::agent
