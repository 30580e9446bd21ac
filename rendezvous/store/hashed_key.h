// SPDX-License-Identifier: Apache-2.0
// A key with its hash, which is computed once, when a table first wants it: a write looks its key
// up in several tables.
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <string_view>

#include "common/keyed_hash.h"

namespace ddprun::store {

// Views the text as a std::string_view does. One thread at a time.
class HashedKey : public std::string_view {
 public:
  constexpr HashedKey() = default;
  template <std::convertible_to<std::string_view> Text>
  constexpr HashedKey(const Text& text) : std::string_view(text) {}  // NOLINT: as a string_view is

  std::string_view text() const { return {data(), size()}; }
  std::size_t hash() const {
    if (!hash_) hash_ = KeyedHash()(text());
    return *hash_;
  }

 private:
  mutable std::optional<std::size_t> hash_;
};

}  // namespace ddprun::store
