// SPDX-License-Identifier: Apache-2.0
// A mirror's transfers: rows cut into parts, and parts made rows again (docs/ha-mirror.md). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/ha/mirror_codec.h"
#include "rendezvous/journal/row.h"

namespace ddprun::ha::mirror {

inline constexpr std::size_t kMaxRowNameBytes = 4096;
inline constexpr std::size_t kMaxRowContentBytes = 1'000'000'000;

// Rows one after another, as in a transfer; kBeforeRow has some. Throws Error(kResourceExhausted):
// it is larger than a row can be.
void add_row(const journal::RowChange& row, std::string& bytes);
// Throws Error(kProtocol).
journal::Batch rows_of(std::string_view bytes);

// One transfer, from its first row to its last part.
class RowCutter {
 public:
  // `send` gets each part as soon as it is full; what it throws goes through.
  RowCutter(Transfer transfer, std::uint64_t number, std::function<void(std::string part)> send);

  // null: the row is erased. Throws as add_row().
  void add(const std::string& key, const std::string* content);
  void add(const journal::RowChange& row);
  void finish();  // sends the last part
  std::size_t num_bytes() const { return num_bytes_; }

 private:
  void append(std::string_view bytes);
  void send(bool is_last);

  const Transfer transfer_;
  const std::uint64_t number_;
  const std::function<void(std::string)> send_;
  std::string rows_;  // of the part that isn't full yet
  std::size_t num_bytes_ = 0;
};

// Takes rows out of bytes that come in pieces.
class RowReader {
 public:
  // The rows that end in `bytes`. What it keeps grows with what came, not with what was announced.
  // Throws Error(kProtocol).
  std::vector<journal::RowChange> take(std::string_view bytes);
  bool is_between_rows() const { return head_.empty() && missing_ == 0; }

 private:
  std::string head_;           // of the row under way, until its sizes are known
  std::string key_, content_;  // of the row under way
  std::size_t key_bytes_ = 0;  // of its name, in all
  bool is_erased_ = false;     // it
  std::size_t missing_ = 0;    // of its name and content
};

// What a standby makes of the parts that come, in their order.
class TransferReader {
 public:
  struct Step {
    Transfer transfer = Transfer::kBatch;
    std::uint64_t number = 0;
    bool begins = false, ends = false;
    std::int64_t monotonic_ns = 0;
    std::vector<journal::RowChange> rows;  // that end in this part
  };
  // Throws Error(kProtocol): it is none that may come now, or has a row that is none of ours.
  Step take(std::string_view frame);

 private:
  RowReader rows_;
  std::uint64_t number_ = 0;  // of the last part
  bool is_open_ = false;      // its transfer has not ended
};

}  // namespace ddprun::ha::mirror
