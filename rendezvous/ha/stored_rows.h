// SPDX-License-Identifier: Apache-2.0
// The journal's rows as bytes in etcd. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/journal/row.h"

namespace ddprun::ha {

// Bytes that are kept in parts, and what to know them by.
struct Parts {
  std::size_t num_parts = 0;
  std::size_t num_bytes = 0;
  std::uint32_t checksum = 0;

  friend bool operator==(const Parts&, const Parts&) = default;
};

Parts parts_of(std::string_view bytes, std::size_t part_bytes);
std::string encode_parts(const Parts& parts);  // "3 2500000 1f2e3d4c"
std::optional<Parts> decode_parts(std::string_view text);

// The name of a part below its prefix: in their order.
std::string part_name(std::size_t number);

// A row's value: its content, or where that is.
struct StoredRow {
  std::string content;
  std::string blob;  // the id; empty: it is in `content`
  Parts parts;       // of the blob
};
std::string encode_row(std::string_view content);
std::string encode_row_of_blob(const std::string& blob, const Parts& parts);
std::optional<StoredRow> decode_row(std::string_view value);  // nullopt: it is none

// Rows with their values, one after another, in the order of their keys, none of them twice.
std::string encode_log(const journal::Batch& rows);
std::optional<journal::Batch> decode_log(std::string_view bytes);

// Of a transaction that an earlier leader made, and so of a blob: there is room for all of ours
// behind it.
inline constexpr std::int64_t kMaxNumber = 999'999'999'999'999'999;
// The number that an id is; nullopt: it is no id.
std::optional<std::int64_t> number_of_blob(std::string_view id);

// When, of whose monotonic clock, and how many transactions there were.
struct ClockRow {
  int format = 1;
  std::int64_t number = 0;
  std::int64_t monotonic_ns = 0;
  std::string boot;  // the machine's, as long as it runs; empty: unknown
};
std::string encode_clock(const ClockRow& row);
std::optional<ClockRow> decode_clock(std::string_view text);

}  // namespace ddprun::ha
