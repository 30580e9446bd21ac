// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_transfer.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/row_head.h"

namespace ddprun::ha::mirror {
namespace {

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kProtocol, what); }

std::string head_of(const std::string& key, const std::string* content) {
  if (key.empty() || key.size() > kMaxRowNameBytes ||
      (content != nullptr && content->size() > kMaxRowContentBytes)) {
    throw Error(ErrorCode::kResourceExhausted,
                concat("row \"", one_line(key.substr(0, 80)), "\" is too large for a mirror"));
  }
  return encode_head(key, content);
}

const std::string* content_of(const journal::RowChange& row) {
  return row.content ? &*row.content : nullptr;
}

// Takes up to `size` bytes off `bytes`.
std::string_view take_off(std::string_view& bytes, std::size_t size) {
  const std::string_view taken = bytes.substr(0, size);
  bytes.remove_prefix(taken.size());
  return taken;
}

}  // namespace

void add_row(const journal::RowChange& row, std::string& bytes) {
  bytes += head_of(row.key, content_of(row));
  bytes += row.key;
  if (row.content) bytes += *row.content;
}

journal::Batch rows_of(std::string_view bytes) {
  RowReader reader;
  journal::Batch rows = reader.take(bytes);
  if (!reader.is_between_rows()) fail("the last row is cut off");
  return rows;
}

// ---- RowCutter ----

RowCutter::RowCutter(Transfer transfer, std::uint64_t number,
                     std::function<void(std::string part)> send)
    : transfer_(transfer), number_(number), send_(std::move(send)) {}

void RowCutter::add(const std::string& key, const std::string* content) {
  append(head_of(key, content));
  append(key);
  if (content != nullptr) append(*content);
}

void RowCutter::add(const journal::RowChange& row) { add(row.key, content_of(row)); }

void RowCutter::append(std::string_view bytes) {
  num_bytes_ += bytes.size();
  while (!bytes.empty()) {
    if (rows_.size() == kMaxPartBytes) send(false);
    rows_ += take_off(bytes, kMaxPartBytes - rows_.size());
  }
}

void RowCutter::finish() { send(true); }

void RowCutter::send(bool is_last) {
  Part part;
  part.transfer = transfer_;
  part.is_last = is_last;
  part.number = number_;
  part.monotonic_ns = Clock::now().time_since_epoch().count();
  part.rows = rows_;
  send_(encode(part));
  rows_.clear();
}

// ---- RowReader ----

std::vector<journal::RowChange> RowReader::take(std::string_view bytes) {
  std::vector<journal::RowChange> rows;
  while (!bytes.empty()) {
    if (missing_ == 0) {
      head_ += take_off(bytes, RowHead::kBytes - head_.size());
      if (head_.size() < RowHead::kBytes) break;
      const RowHead head = decode_head(head_);
      head_.clear();
      is_erased_ = head.is_erased;
      if (head.num_key_bytes == 0 || head.num_key_bytes > kMaxRowNameBytes) {
        fail(concat("a row's name has ", head.num_key_bytes, " bytes"));
      }
      if (head.num_content_bytes > kMaxRowContentBytes) {
        fail(concat("a row has ", head.num_content_bytes, " bytes"));
      }
      key_bytes_ = head.num_key_bytes;
      missing_ = key_bytes_ + head.num_content_bytes;
    }
    const std::string_view of_key = take_off(bytes, key_bytes_ - key_.size());
    key_ += of_key;
    missing_ -= of_key.size();
    const std::string_view of_content = take_off(bytes, missing_);
    content_ += of_content;
    missing_ -= of_content.size();
    if (missing_ > 0) break;
    journal::RowChange& row = rows.emplace_back();
    row.key = std::exchange(key_, {});
    if (!is_erased_) row.content = std::exchange(content_, {});
  }
  return rows;
}

// ---- TransferReader ----

TransferReader::Step TransferReader::take(std::string_view frame) {
  const Part part = decode_part(frame);
  const std::uint64_t number = is_open_ ? number_ : number_ + 1;
  if (part.number != number) {
    fail(concat("a part is of transfer ", part.number, " in place of ", number));
  }
  if ((part.transfer == Transfer::kSnapshot) != (number == 1)) {
    fail("transfer 1 is the snapshot, and no other one");
  }
  Step step;
  step.transfer = part.transfer;
  step.number = number;
  step.begins = !is_open_;
  step.ends = part.is_last;
  step.monotonic_ns = part.monotonic_ns;
  step.rows = rows_.take(part.rows);
  for (const journal::RowChange& row : step.rows) {
    if (is_leader_row(row.key)) {
      fail(concat("row \"", one_line(row.key.substr(0, 80)), "\" is each side's own"));
    }
  }
  if (part.is_last && !rows_.is_between_rows()) fail("a transfer ends inside of a row");
  number_ = number;
  is_open_ = !part.is_last;
  return step;
}

}  // namespace ddprun::ha::mirror
