// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/store_rows.h"

#include <algorithm>
#include <set>

#include "common/error.h"
#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::string_view kStores = "stores/";
constexpr std::size_t kRowBytes = 128;  // a row's cost beside its content

// In a turn's row it follows the reason not to add anything, if ProxiedStore::Refusals::lets_count.
constexpr char kLetsCount = '\n';
constexpr std::size_t kDigits = 20;  // of each number, so that keys have the numbers' order

bool read_number(std::string_view* text, std::uint64_t* number) {
  const auto taken = take_number<std::uint64_t>(*text);
  if (!taken || !text->starts_with('/')) return false;
  text->remove_prefix(1);
  *number = *taken;
  return true;
}

std::uint64_t number_at_end(std::string_view key) {
  key.remove_prefix(key.rfind('/') + 1);
  return take_number<std::uint64_t>(key).value_or(0);
}

}  // namespace

StoreRows::StoreRows(std::uint64_t job, std::uint64_t round)
    : prefix_(concat(kStores, job, '/', round, '/')) {}

// Called for each turn, so it must be cheap.
std::string StoreRows::key(std::string_view kind, std::uint64_t number) const {
  const std::string digits = std::to_string(number);
  std::string key;
  key.reserve(prefix_.size() + kind.size() + 1 + kDigits);
  key.append(prefix_).append(kind).append(1, '/');
  return key.append(kDigits - digits.size(), '0').append(digits);
}

void StoreRows::add(const store::ProxiedStore::Turn& turn, journal::Batch& batch) {
  if (is_erased_) return;
  std::string content;
  content.reserve(kRowBytes + turn.bytes.size());
  store::append_u64(snapshot_, &content);
  store::append_u64(turn.node, &content);
  store::append_u64(turn.position, &content);
  store::append_u64(turn.acknowledged, &content);
  std::string growth = turn.refusals.growth;
  if (!growth.empty() && turn.refusals.lets_count) growth += kLetsCount;
  store::append_vector(growth, &content);
  store::append_vector(turn.refusals.clients, &content);
  content += turn.bytes;
  log_bytes_ += kRowBytes + turn.bytes.size();
  batch.push_back({key("log", num_log_rows_++), std::move(content)});
  num_kept_rows_ = std::max(num_kept_rows_, num_log_rows_);
}

void StoreRows::replace(std::string_view snapshot, journal::Batch& batch) {
  if (is_erased_) return;
  // As many rows stay as the next log may need, but none of the first log. If a disk loses the
  // snapshot, the first log's rows would look like a complete store.
  erase_log(snapshot_ == 0 ? 0 : num_log_rows_, batch);
  num_log_rows_ = 0;
  log_bytes_ = 0;
  ++snapshot_;
  base_bytes_ = snapshot.size();
  std::size_t piece = 0;
  do {
    std::string content;
    store::append_u64(snapshot_, &content);
    content += snapshot.substr(0, kPieceBytes);
    snapshot.remove_prefix(std::min(snapshot.size(), kPieceBytes));
    batch.push_back({key("base", piece++), std::move(content)});
  } while (!snapshot.empty());
  for (std::size_t old = piece; old < num_pieces_; ++old) {
    batch.push_back({key("base", old), std::nullopt});
  }
  num_pieces_ = piece;
}

void StoreRows::erase_log(std::uint64_t from, journal::Batch& batch) {
  for (; num_kept_rows_ > from; --num_kept_rows_) {
    batch.push_back({key("log", num_kept_rows_ - 1), std::nullopt});
  }
}

void StoreRows::erase(journal::Batch& batch) {
  erase_log(0, batch);
  for (; num_pieces_ > 0; --num_pieces_) {
    batch.push_back({key("base", num_pieces_ - 1), std::nullopt});
  }
  is_erased_ = true;
}

void StoreRows::erase_all(const journal::Rows& rows, const Name& name, journal::Batch& batch) {
  const std::string prefix = StoreRows(name.job, name.round).prefix_;
  for (auto row = rows.lower_bound(prefix); row != rows.end() && row->first.starts_with(prefix);
       ++row) {
    batch.push_back({row->first, std::nullopt});
  }
}

void StoreRows::restore(const journal::Rows& rows, store::ProxiedStore& store) {
  const auto check_snapshot = [this](std::uint64_t number) {
    if (number != snapshot_) throw Error(ErrorCode::kProtocol, "rows of its store are missing");
  };
  std::string base;
  for (auto row = rows.find(key("base", 0)); row != rows.end();
       row = rows.find(key("base", ++num_pieces_))) {
    store::SnapshotReader in(row->second);
    const std::uint64_t number = in.integer();
    if (num_pieces_ == 0) snapshot_ = number;
    check_snapshot(number);
    base += in.rest();
  }
  base_bytes_ = base.size();
  if (num_pieces_ > 0) store.restore(base);
  const std::string log = prefix_ + "log/";
  for (auto row = rows.lower_bound(log); row != rows.end() && row->first.starts_with(log); ++row) {
    store::SnapshotReader in(row->second);
    const std::uint64_t number = in.integer();
    num_kept_rows_ = number_at_end(row->first) + 1;
    if (number < snapshot_) continue;
    check_snapshot(number);
    if (row->first != key("log", num_log_rows_++)) {
      throw Error(ErrorCode::kProtocol, "rows of its store are missing");
    }
    store::ProxiedStore::Turn turn;
    turn.node = in.integer();
    turn.position = in.integer();
    turn.acknowledged = in.integer();
    turn.refusals.growth = in.text();
    turn.refusals.lets_count = turn.refusals.growth.ends_with(kLetsCount);
    if (turn.refusals.lets_count) turn.refusals.growth.pop_back();
    turn.refusals.clients = in.text();
    turn.bytes = in.rest();
    log_bytes_ += kRowBytes + turn.bytes.size();
    store.replay(turn);
  }
  store.restored();
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
