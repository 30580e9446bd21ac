// SPDX-License-Identifier: Apache-2.0
// Bytes as base64 (RFC 4648, section 4: "+", "/", padded with "="). Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

std::string to_base64(std::string_view bytes);

// nullopt: not what to_base64() makes (other characters, a wrong length, bits left over).
std::optional<std::string> from_base64(std::string_view text);

}  // namespace ddprun
