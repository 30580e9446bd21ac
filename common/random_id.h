// SPDX-License-Identifier: Apache-2.0
// A name or a secret that nobody else draws: 16 bytes from the kernel's random numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace ddprun {

using RandomBytes = std::array<std::uint8_t, 16>;

// Throws Error(kSystem).
RandomBytes random_bytes();

// 32 hexadecimal digits, in small letters.
std::string to_hex(const RandomBytes& bytes);

// to_hex(random_bytes()).
std::string random_id();

}  // namespace ddprun
