// SPDX-License-Identifier: Apache-2.0
#include "common/random_id.h"

#include <sys/random.h>

#include <array>
#include <cerrno>

#include "common/error.h"

namespace ddprun {

std::string random_id() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_system_error("getrandom", errno);
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace ddprun
