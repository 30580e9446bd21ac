// SPDX-License-Identifier: Apache-2.0
// Bytes as hexadecimal digits. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ddprun {

std::string to_hex(std::span<const std::uint8_t> bytes);  // small letters

// False where `text` isn't exactly the small-letter digits of `bytes`, whose content is undefined
// then.
bool from_hex(std::string_view text, std::span<std::uint8_t> bytes);

}  // namespace ddprun
