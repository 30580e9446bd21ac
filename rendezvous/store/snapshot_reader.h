// SPDX-License-Identifier: Apache-2.0
// Reads what append_u64 and append_vector wrote. Pure.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/error.h"

namespace ddprun::store {

class SnapshotReader {
 public:
  explicit SnapshotReader(std::string_view bytes) : bytes_(bytes) {}

  // Each throws Error(kProtocol): the bytes end before.
  std::uint64_t integer() {
    const std::string_view field = take(sizeof(std::uint64_t));
    std::uint64_t value = 0;
    std::memcpy(&value, field.data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(integer()); }
  std::string_view rest() { return take(bytes_.size()); }

  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size()) {
      throw Error(ErrorCode::kProtocol, "what was kept of a store ends too early");
    }
    const std::string_view field = bytes_.substr(0, static_cast<std::size_t>(size));
    bytes_.remove_prefix(static_cast<std::size_t>(size));
    return field;
  }

  std::string_view bytes_;
};

}  // namespace ddprun::store
