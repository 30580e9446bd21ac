// SPDX-License-Identifier: Apache-2.0
// The keys of a TOML text, before toml++ reads it. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace ddprun {

inline constexpr int kMostKeyParts = 32;  // "a.b" has two

// The begin of a key of several parts.
std::optional<std::size_t> find_long_key(std::string_view text);

}  // namespace ddprun
