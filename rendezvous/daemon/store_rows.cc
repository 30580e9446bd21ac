// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/store_rows.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::string_view kStores = "stores/";
constexpr std::size_t kRowBytes = 128;  // what a row costs besides its content
constexpr std::size_t kIntegerBytes = sizeof(std::uint64_t);

// Rows are ordered by their keys.
std::string padded(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  return std::string(20 - digits.size(), '0') + digits;
}

std::uint64_t integer_at(std::string_view bytes, std::size_t offset) {
  if (bytes.size() < offset + kIntegerBytes) {
    throw Error(ErrorCode::kProtocol, "a row of its store is too short");
  }
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

bool read_number(std::string_view* text, std::uint64_t* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc{} || end == text->data() + text->size() || *end != '/') return false;
  text->remove_prefix(static_cast<std::size_t>(end - text->data()) + 1);
  return true;
}

}  // namespace

StoreRows::StoreRows(std::uint64_t job, std::uint64_t round)
    : prefix_(concat(kStores, job, '/', round, '/')) {}

std::string StoreRows::key(std::string_view kind, std::uint64_t number) const {
  return concat(prefix_, kind, '/', padded(number));
}

void StoreRows::add(store::ProxiedStore::Node from, std::uint64_t position, std::string_view bytes,
                    journal::Batch& batch) {
  std::string content;
  content.reserve(2 * kIntegerBytes + bytes.size());
  store::append_u64(from, &content);
  store::append_u64(position, &content);
  content += bytes;
  log_bytes_ += kRowBytes + bytes.size();
  batch.push_back({key("log", next_++), std::move(content)});
}

void StoreRows::replace(std::string_view snapshot, journal::Batch& batch) {
  for (; first_ < next_; ++first_) batch.push_back({key("log", first_), std::nullopt});
  std::string base;
  store::append_u64(next_, &base);
  base += snapshot;
  std::size_t piece = 0;
  for (std::size_t at = 0; at < base.size(); at += kPieceBytes) {
    batch.push_back({key("base", piece++), base.substr(at, kPieceBytes)});
  }
  for (std::size_t old = piece; old < num_pieces_; ++old) {
    batch.push_back({key("base", old), std::nullopt});
  }
  num_pieces_ = piece;
  base_bytes_ = base.size();
  log_bytes_ = 0;
}

void StoreRows::erase(journal::Batch& batch) {
  for (; first_ < next_; ++first_) batch.push_back({key("log", first_), std::nullopt});
  for (; num_pieces_ > 0; --num_pieces_) {
    batch.push_back({key("base", num_pieces_ - 1), std::nullopt});
  }
}

void StoreRows::restore(const journal::Rows& rows, store::ProxiedStore& store) {
  std::string base;
  for (auto row = rows.find(key("base", 0)); row != rows.end();
       row = rows.find(key("base", ++num_pieces_))) {
    base += row->second;
  }
  if (!base.empty()) {
    first_ = next_ = integer_at(base, 0);
    base_bytes_ = base.size();
    store.restore(std::string_view(base).substr(kIntegerBytes));
  }
  const std::string log = prefix_ + "log/";
  for (auto row = rows.lower_bound(log); row != rows.end() && row->first.starts_with(log); ++row) {
    if (row->first != key("log", next_)) {
      throw Error(ErrorCode::kProtocol, "rows of its store are missing");
    }
    ++next_;
    const std::string_view content = row->second;
    store::ProxyFrame frame;
    frame.round = store.round();
    frame.position = integer_at(content, kIntegerBytes);
    frame.bytes = content.substr(2 * kIntegerBytes);
    log_bytes_ += kRowBytes + frame.bytes.size();
    store.replay(integer_at(content, 0), frame);
  }
}

std::vector<StoreRows::Name> StoreRows::names(const journal::Rows& rows) {
  std::set<Name> names;
  for (auto row = rows.lower_bound(std::string(kStores)); row != rows.end(); ++row) {
    if (!row->first.starts_with(kStores)) break;
    std::string_view rest = std::string_view(row->first).substr(kStores.size());
    Name name;
    if (read_number(&rest, &name.job) && read_number(&rest, &name.round)) names.insert(name);
  }
  return {names.begin(), names.end()};
}

}  // namespace ddprun::rendezvous
