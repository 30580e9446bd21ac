// SPDX-License-Identifier: Apache-2.0
// Keys that are one to a hash table which hashes with libstdc++'s std::hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace ddprun::bench {

// They have 16 bytes and are all different. std::hash is MurmurHash64A (Appleby, 2008) with a fixed
// seed. Each first half has a second half that leads to the same state.
inline std::vector<std::string> colliding_keys(std::size_t count) {
  constexpr std::uint64_t kFactor = 0xc6a4a7935bd1e995, kSeed = 0xc70f6907;
  std::uint64_t inverse = kFactor;  // modulo 2^64, by Newton's method
  for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
  const auto shifted = [](std::uint64_t x) { return x ^ (x >> 47); };  // its own inverse
  std::vector<std::string> keys;
  for (std::uint64_t first = 0; first < count; ++first) {
    const std::uint64_t mixed = shifted(first * kFactor) * kFactor;
    const std::uint64_t state = (kSeed ^ (16 * kFactor) ^ mixed) * kFactor;
    const std::uint64_t second = shifted(state * inverse) * inverse;
    std::string key(16, '\0');
    std::memcpy(key.data(), &first, sizeof first);
    std::memcpy(key.data() + 8, &second, sizeof second);
    keys.push_back(key);
  }
  return keys;
}

}  // namespace ddprun::bench
