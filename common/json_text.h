// SPDX-License-Identifier: Apache-2.0
// Text as the inside of a JSON string, for the worker SDK, which needs no Boost (else: json.h).
// Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

// Valid UTF-8 of one line, quotes and backslashes escaped; cut at about `max_bytes`.
std::string json_text(std::string_view text, std::size_t max_bytes);

}  // namespace ddprun
