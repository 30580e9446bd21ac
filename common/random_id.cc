// SPDX-License-Identifier: Apache-2.0
#include "common/random_id.h"

#include <sys/random.h>

#include <cerrno>

#include "common/error.h"

namespace ddprun {

RandomBytes random_bytes() {
  RandomBytes bytes;
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    if (got < 0 && errno != EINTR) throw_system_error("getrandom", errno);
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::string to_hex(const RandomBytes& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string random_id() { return to_hex(random_bytes()); }

}  // namespace ddprun
