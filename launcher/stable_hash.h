// SPDX-License-Identifier: Apache-2.0
// A hash that is the same on every node, in every version (FNV-1a): for names and ports that nodes
// choose alike without talking. Nothing that an enemy must not guess.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddprun::launcher {

inline std::uint64_t stable_hash(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325u) {
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace ddprun::launcher
