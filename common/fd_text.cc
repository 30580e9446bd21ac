// SPDX-License-Identifier: Apache-2.0
#include "common/fd_text.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ddprun {

ReadText read_text(int fd, std::size_t most) {
  ReadText read;
  std::array<char, 16384> buffer;
  while (read.text.size() < most) {
    const std::size_t wanted = std::min(buffer.size(), most - read.text.size());
    const ssize_t size = ::read(fd, buffer.data(), wanted);
    if (size == 0) break;
    if (size > 0) {
      read.text.append(buffer.data(), static_cast<std::size_t>(size));
    } else if (errno != EINTR) {
      read.error = errno;
      break;
    }
  }
  return read;
}

int write_text(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size == 0) return ENOSPC;
    if (size > 0) {
      text.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace ddprun
