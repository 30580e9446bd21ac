// SPDX-License-Identifier: Apache-2.0
// A hash for tables whose keys come from the network: nobody outside can choose keys that collide.
// Algorithm: SipHash-1-3, after Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012).
// It takes one round for each word and three at the end, as in Rust's and Python's tables. Any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ddprun {

struct SipKey {
  std::uint64_t low = 0, high = 0;
};

// Pure. A key of 20 bytes takes about 10 ns.
std::uint64_t sip_hash(std::string_view bytes, const SipKey& key);

// Hashes with a key that this process drew at its first use. Throws Error(kSystem) if there are no
// random numbers.
struct KeyedHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const;
};

// A map whose keys can also be found by string_view.
template <typename Value>
using KeyedMap = std::unordered_map<std::string, Value, KeyedHash, std::equal_to<>>;

}  // namespace ddprun
