// SPDX-License-Identifier: Apache-2.0
// Bytes as text: hexadecimal digits, and base64 (RFC 4648, section 4: "+", "/", padded with "=").
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ddprun {

std::string to_hex(std::span<const std::uint8_t> bytes);  // small letters

// False if `text` isn't exactly the small-letter digits of `bytes`; their content is then
// undefined.
bool from_hex(std::string_view text, std::span<std::uint8_t> bytes);

std::string to_base64(std::string_view bytes);

// nullopt: to_base64() can't make it (other characters, a wrong length, bits left over).
std::optional<std::string> from_base64(std::string_view text);

}  // namespace ddprun
