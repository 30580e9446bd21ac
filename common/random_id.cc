// SPDX-License-Identifier: Apache-2.0
#include "common/random_id.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "common/error.h"

namespace ddprun {

void draw_random(std::span<std::uint8_t> bytes) {
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::syscall(SYS_getrandom, bytes.data() + filled, bytes.size() - filled, 0);
    if (got < 0 && errno != EINTR) throw_system_error("getrandom", errno);
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
}

RandomBytes random_bytes() {
  RandomBytes bytes;
  draw_random(bytes);
  return bytes;
}

std::string random_id() { return to_hex(random_bytes()); }

}  // namespace ddprun
