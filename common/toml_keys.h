// SPDX-License-Identifier: Apache-2.0
// Checks the keys of a TOML text before toml++ reads it. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace ddprun {

inline constexpr int kMostKeyParts = 32;  // "a.b" has two

// Returns where the first key of more than kMostKeyParts parts begins; nullopt: there is none.
std::optional<std::size_t> find_long_key(std::string_view text);

}  // namespace ddprun
