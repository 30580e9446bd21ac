// SPDX-License-Identifier: Apache-2.0
// Random numbers that follow from a seed, on every machine alike (splitmix64). Pure.
#pragma once

#include <chrono>
#include <cstdint>

namespace ddprun::bench {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // 0 … bound − 1; bound > 0.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  int index(int bound) { return static_cast<int>(below(static_cast<std::uint64_t>(bound))); }
  bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }
  // Both ends included.
  std::chrono::microseconds between(std::chrono::microseconds least,
                                    std::chrono::microseconds most) {
    const auto span = static_cast<std::uint64_t>((most - least).count()) + 1;
    return least + std::chrono::microseconds(static_cast<std::int64_t>(below(span)));
  }

 private:
  std::uint64_t state_;
};

}  // namespace ddprun::bench
