// SPDX-License-Identifier: Apache-2.0
// What is before a row in a row of bytes: two numbers of 32 bits, the high byte first (a mirror's
// transfers, docs/ha-mirror.md; batches in etcd). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::ha {

struct RowHead {
  static constexpr std::size_t kBytes = 8;
  static constexpr std::uint32_t kErased = 0xffffffff;  // in place of the content's size

  std::uint32_t num_key_bytes = 0, num_content_bytes = 0;
  bool is_erased = false;  // and has no content
};

// `content`: null: the row is erased. Both are shorter than 2^32 - 1 bytes.
inline std::string encode_head(std::string_view key, const std::string* content) {
  const auto num_key_bytes = static_cast<std::uint32_t>(key.size());
  const std::uint32_t second =
      content == nullptr ? RowHead::kErased : static_cast<std::uint32_t>(content->size());
  std::string bytes;
  for (const std::uint32_t size : {num_key_bytes, second}) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift & 0xff);
  }
  return bytes;
}

// Of the first RowHead::kBytes of `bytes`, which has them.
inline RowHead decode_head(std::string_view bytes) {
  const auto size_at = [&](std::size_t at) {
    std::uint32_t size = 0;
    for (const char byte : bytes.substr(at, 4)) size = size << 8 | static_cast<unsigned char>(byte);
    return size;
  };
  RowHead head;
  head.num_key_bytes = size_at(0);
  head.is_erased = size_at(4) == RowHead::kErased;
  head.num_content_bytes = head.is_erased ? 0 : size_at(4);
  return head;
}

}  // namespace ddprun::ha
