// SPDX-License-Identifier: Apache-2.0
// FNV-1a: a hash that is the same on every node, whatever its C++ library.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddprun {

constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace ddprun
