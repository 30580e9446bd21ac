// SPDX-License-Identifier: Apache-2.0
// Unique names and secrets, made from the kernel's random numbers.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "common/byte_text.h"

namespace ddprun {

using RandomBytes = std::array<std::uint8_t, 16>;

// These throw Error(kSystem).
void draw_random(std::span<std::uint8_t> bytes);
RandomBytes random_bytes();

// Returns to_hex(random_bytes()): 32 digits.
std::string random_id();

}  // namespace ddprun
