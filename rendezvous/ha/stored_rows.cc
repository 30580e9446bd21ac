// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/stored_rows.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "common/crc32.h"
#include "common/log.h"

namespace ddprun::ha {
namespace {

constexpr char kInline = 'v', kBlob = 'b';

// Takes the first word off `text`; empty: there is none.
std::string_view next_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(std::min(text.size(), word.size() + 1));
  return word;
}

template <typename Number>
bool read_number(std::string_view word, Number& number, int base = 10) {
  const char* end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data(), end, number, base);
  return error == std::errc() && rest == end && !word.empty();
}

// Before a row in a batch's bytes: two numbers of 32 bits, the high byte first.
struct RowHead {
  static constexpr std::size_t kBytes = 8;
  static constexpr std::uint32_t kErased = 0xffffffff;  // in place of the content's size

  std::uint32_t num_key_bytes = 0, num_content_bytes = 0;
  bool is_erased = false;  // and has no content
};

// `content`: null: the row is erased. Both are shorter than 2^32 - 1 bytes.
std::string encode_head(std::string_view key, const std::string* content) {
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
RowHead decode_head(std::string_view bytes) {
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

}  // namespace

Parts parts_of(std::string_view bytes, std::size_t part_bytes) {
  return {(bytes.size() + part_bytes - 1) / part_bytes, bytes.size(), crc32(0, bytes)};
}

std::string encode_parts(const Parts& parts) {
  char checksum[9];
  std::snprintf(checksum, sizeof checksum, "%08x", parts.checksum);
  return concat(parts.num_parts, ' ', parts.num_bytes, ' ', checksum);
}

std::optional<Parts> decode_parts(std::string_view text) {
  Parts parts;
  const bool is_whole = read_number(next_word(text), parts.num_parts) &&
                        read_number(next_word(text), parts.num_bytes) &&
                        read_number(next_word(text), parts.checksum, 16) && text.empty();
  if (!is_whole) return std::nullopt;
  return parts;
}

std::string part_name(std::size_t number) {
  char name[17];
  std::snprintf(name, sizeof name, "%08zx", number);
  return name;
}

std::optional<std::int64_t> number_of_blob(std::string_view id) {
  std::int64_t number = 0;
  if (!read_number(id, number) || number < 0 || number > kMaxNumber) return std::nullopt;
  return number;
}

std::string encode_row(std::string_view content) { return concat(kInline, content); }

std::string encode_row_of_blob(const std::string& blob, const Parts& parts) {
  return concat(kBlob, blob, ' ', encode_parts(parts));
}

std::optional<StoredRow> decode_row(std::string_view value) {
  if (value.empty()) return std::nullopt;
  const char kind = value.front();
  value.remove_prefix(1);
  if (kind == kInline) return StoredRow{std::string(value), {}, {}};
  if (kind != kBlob) return std::nullopt;
  StoredRow row;
  row.blob = next_word(value);
  const auto parts = decode_parts(value);
  if (!parts || !number_of_blob(row.blob)) return std::nullopt;
  row.parts = *parts;
  return row;
}

std::string encode_log(const journal::Batch& rows) {
  std::string bytes;
  for (const journal::RowChange& row : rows) {
    bytes += encode_head(row.key, row.content ? &*row.content : nullptr);
    bytes += row.key;
    if (row.content) bytes += *row.content;
  }
  return bytes;
}

std::optional<journal::Batch> decode_log(std::string_view bytes) {
  journal::Batch rows;
  while (!bytes.empty()) {
    if (bytes.size() < RowHead::kBytes) return std::nullopt;
    const RowHead head = decode_head(bytes);
    bytes.remove_prefix(RowHead::kBytes);
    const std::size_t key_bytes = head.num_key_bytes, size = head.num_content_bytes;
    if (bytes.size() < key_bytes + size) return std::nullopt;
    journal::RowChange& row = rows.emplace_back();
    row.key = bytes.substr(0, key_bytes);
    if (rows.size() > 1 && row.key <= rows[rows.size() - 2].key) return std::nullopt;
    if (!head.is_erased) row.content = bytes.substr(key_bytes, size);
    bytes.remove_prefix(key_bytes + size);
  }
  return rows;
}

std::string encode_clock(const ClockRow& row) {
  return concat(row.format, ' ', row.number, ' ', row.monotonic_ns, ' ', row.boot);
}

std::optional<ClockRow> decode_clock(std::string_view text) {
  ClockRow row;
  if (!read_number(next_word(text), row.format)) return std::nullopt;
  if (row.format > 1) return row;  // the rest may be anything
  if (!read_number(next_word(text), row.number)) return std::nullopt;
  if (!read_number(next_word(text), row.monotonic_ns)) return std::nullopt;
  if (row.number < 0 || row.monotonic_ns < 0) return std::nullopt;
  row.boot = text;
  return row;
}

}  // namespace ddprun::ha
