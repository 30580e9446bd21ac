// SPDX-License-Identifier: Apache-2.0
// HMAC-SHA256. For rendezvous/security alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "rendezvous/security/mac.h"

namespace ddprun::security {

Mac hmac_sha256(std::span<const std::uint8_t> key, std::string_view text);

// What a stranger says, as it may be printed: cut, all but ASCII's printable characters as "?".
std::string shown(std::string_view text);

}  // namespace ddprun::security
