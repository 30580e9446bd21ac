// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/etcd_journal.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/check.h"
#include "common/clock.h"
#include "common/crc32.h"
#include "common/log.h"
#include "common/parsed_number.h"
#include "common/process_facts.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun::ha {
namespace {

constexpr char kInline = 'v', kBlob = 'b';

// A log has a head before each row: the sizes of its key and its content, 32 bits each, the high
// byte first.
constexpr std::size_t kHeadBytes = 8;
constexpr std::uint32_t kErased = 0xffffffff;  // in place of the content's size

void put_size(std::string& bytes, std::size_t size) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift & 0xff);
}

std::uint32_t take_size(std::string_view& bytes) {
  std::uint32_t size = 0;
  for (const char byte : bytes.substr(0, 4)) size = size << 8 | static_cast<unsigned char>(byte);
  bytes.remove_prefix(4);
  return size;
}

constexpr std::size_t kRubbishAtOnce = 20;

using Keys = EtcdJournal::Keys;

// Visits the keys that begin with `prefix`, in their order.
template <typename Visit>
void visit_prefix(const Keys& keys, const std::string& prefix, Visit visit) {
  for (auto key = keys.lower_bound(prefix); key != keys.end() && key->first.starts_with(prefix);
       ++key) {
    visit(key->first.substr(prefix.size()), key->second);
  }
}

// Returns the bytes; nullopt: parts are missing or changed.
std::optional<std::string> join_parts(const Keys& keys, const std::string& prefix,
                                      const Parts& parts) {
  std::string bytes;
  std::size_t largest = 0;
  for (std::size_t part = 0; part < parts.num_parts; ++part) {
    const auto found = keys.find(prefix + part_name(part));
    if (found == keys.end()) return std::nullopt;
    bytes += found->second.value;
    largest = std::max(largest, found->second.value.size());
  }
  if (parts_of(bytes, std::max<std::size_t>(largest, 1)) != parts) return std::nullopt;
  return bytes;
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
  const auto num_parts = parsed_number<std::size_t>(take_until(text, " "));
  const auto num_bytes = parsed_number<std::size_t>(take_until(text, " "));
  const auto checksum = parsed_number<std::uint32_t>(take_until(text, " "), 16);
  if (!num_parts || !num_bytes || !checksum || !text.empty()) return std::nullopt;
  return Parts{*num_parts, *num_bytes, *checksum};
}

std::string part_name(std::size_t number) {
  char name[17];
  std::snprintf(name, sizeof name, "%08zx", number);
  return name;
}

std::optional<std::int64_t> number_of_blob(std::string_view id) {
  return number_within<std::int64_t>(id, 0, kMaxNumber);
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
  row.blob = take_until(value, " ");
  const auto parts = decode_parts(value);
  if (!parts || !number_of_blob(row.blob)) return std::nullopt;
  row.parts = *parts;
  return row;
}

std::string encode_log(const journal::Batch& rows) {
  std::string bytes;
  for (const journal::RowChange& row : rows) {
    put_size(bytes, row.key.size());
    put_size(bytes, row.content ? row.content->size() : kErased);
    bytes += row.key;
    if (row.content) bytes += *row.content;
  }
  return bytes;
}

std::optional<journal::Batch> decode_log(std::string_view bytes) {
  journal::Batch rows;
  while (!bytes.empty()) {
    if (bytes.size() < kHeadBytes) return std::nullopt;
    const std::size_t key_bytes = take_size(bytes), content_bytes = take_size(bytes);
    const bool is_erased = content_bytes == kErased;
    const std::size_t size = is_erased ? 0 : content_bytes;
    if (bytes.size() < key_bytes + size) return std::nullopt;
    journal::RowChange& row = rows.emplace_back();
    row.key = bytes.substr(0, key_bytes);
    if (rows.size() > 1 && row.key <= rows[rows.size() - 2].key) return std::nullopt;
    if (!is_erased) row.content = bytes.substr(key_bytes, size);
    bytes.remove_prefix(key_bytes + size);
  }
  return rows;
}

std::string encode_clock(const ClockRow& row) {
  return concat(row.format, ' ', row.number, ' ', row.monotonic_ns, ' ', row.boot);
}

std::optional<ClockRow> decode_clock(std::string_view text) {
  const auto format = parsed_number<int>(take_until(text, " "));
  if (!format) return std::nullopt;
  ClockRow row;
  row.format = *format;
  if (row.format > 1) return row;  // the rest may be anything
  const auto number = parsed_number<std::int64_t>(take_until(text, " "));
  const auto monotonic_ns = parsed_number<std::int64_t>(take_until(text, " "));
  if (!number || !monotonic_ns || *number < 0 || *monotonic_ns < 0) return std::nullopt;
  row.number = *number;
  row.monotonic_ns = *monotonic_ns;
  row.boot = text;
  return row;
}

EtcdJournal::EtcdJournal(std::unique_ptr<KeyStore> store, std::string name, std::string prefix,
                         std::int64_t leadership, Limits limits)
    : store_(std::move(store)),
      name_(std::move(name)),
      prefix_(std::move(prefix)),
      leader_{leader_key(prefix_), leadership, {}},
      limits_(limits),
      boot_(boot_id()) {}

// ---- transactions ----

void EtcdJournal::depose() const {
  throw journal::Deposed(concat(name_, ": this ddprund doesn't lead any more"));
}

void EtcdJournal::check_leadership() {
  if (!store_->change_if({leader_}, {}).held) depose();
}

TxnResult EtcdJournal::change(std::int64_t number, std::vector<KeyChange> changes) {
  ClockRow clock;
  clock.number = number;
  clock.monotonic_ns = Clock::now().time_since_epoch().count();
  clock.boot = boot_;
  changes.push_back({clock_key(prefix_), encode_clock(clock)});
  return store_->change_if({leader_, {clock_key(prefix_), {}, clock_revision_}}, changes);
}

// The keys may be changed by something other than a leader, e.g. by restoring a backup. Then this
// process doesn't know etcd's content, and counts as deposed.
void EtcdJournal::follow(const TxnResult& refused, std::int64_t first, std::int64_t last) {
  const std::optional<KeyValue>& leader = refused.found.at(0);
  const std::optional<KeyValue>& clock = refused.found.at(1);
  if (!leader || leader->create_revision != leader_.create_revision) depose();
  const auto row = clock ? decode_clock(clock->value) : std::nullopt;
  if (!row || row->number < first || row->number > last) {
    throw journal::Deposed(
        concat(name_, ": something else than its leader changed ", clock_key(prefix_)));
  }
  clock_revision_ = clock->mod_revision;
  last_taken_ = row->number;
}

void EtcdJournal::take(Step step) {
  DDPRUN_CHECK(!unsure_);
  add_rubbish(step);
  for (const KeyChange& each : step.changes) {
    bytes_since_compaction_ += each.key.size() + (each.value ? each.value->size() : 0);
  }
  const std::int64_t number = ++number_;
  TxnResult result;
  try {
    result = change(number, std::move(step.changes));
  } catch (...) {
    unsure_ = Unsure{number, std::move(step.taken)};
    throw;
  }
  if (result.held) {
    clock_revision_ = result.revision;
    last_taken_ = number;
  } else {
    follow(result, number, number);  // the answer of this attempt was lost
  }
  if (step.taken) step.taken();
  compact_at_times();
}

// An error is only logged: the step has been taken.
void EtcdJournal::compact_at_times() {
  if (bytes_since_compaction_ < limits_.compact_after_bytes) return;
  bytes_since_compaction_ = 0;
  try {
    store_->compact(clock_revision_);
  } catch (const Error& error) {
    log_warning(name_, " can't be compacted now: ", error.what());
  }
}

// Finds out whether the step without an answer has taken effect. If it hasn't, it can't any more.
void EtcdJournal::settle() {
  if (!unsure_) return;
  const TxnResult result = change(++number_, {});
  if (result.held) {
    clock_revision_ = result.revision;
    last_taken_ = number_;
  } else {
    follow(result, unsure_->number, number_);  // that step, or an earlier attempt to settle it
  }
  if (last_taken_ == unsure_->number && unsure_->taken) unsure_->taken();
  unsure_.reset();
}

// ---- batches ----

void EtcdJournal::commit_in_parts(const journal::Batch& batch, const Others& others) {
  DDPRUN_CHECK(loaded_);
  if (batch.empty()) return check_leadership();
  settle();
  for (const std::string& blob : std::exchange(loose_blobs_, {})) {
    rubbish_.insert(blob);
  }
  carry_out_log({});
  tidy();
  let(others);
  const journal::Batch rows = store_large_rows(batch, others);
  if (!fits(rows)) return write_log(rows, others);
  take({changes_of(rows), [this, rows] { note_rows(rows); }});
}

void EtcdJournal::let(const Others& others) {
  if (others) others([this](const journal::Batch& batch) { return commit_between(batch); });
}

// A part of the other batch may be the last thing that etcd has: nothing of it counts yet.
bool EtcdJournal::commit_between(const journal::Batch& batch) {
  if (batch.empty()) {
    check_leadership();
    return true;
  }
  journal::Batch rows;
  for (const journal::RowChange& row : batch) {
    if (row.content && row.content->size() > limits_.row_bytes) return false;
    rows.push_back({row.key, std::nullopt});
    if (row.content) rows.back().content = encode_row(*row.content);
  }
  if (!fits(rows)) return false;
  take({changes_of(rows), [this, rows] { note_rows(rows); }});
  return true;
}

bool EtcdJournal::fits(const journal::Batch& rows) const {
  std::size_t num_bytes = 0;
  for (const journal::RowChange& row : rows) {
    num_bytes += row.key.size() + (row.content ? row.content->size() : 0);
  }
  return rows.size() <= limits_.txn_changes && num_bytes <= limits_.txn_bytes;
}

std::vector<KeyChange> EtcdJournal::changes_of(const journal::Batch& rows) const {
  std::vector<KeyChange> changes;
  for (const journal::RowChange& row : rows) {
    changes.push_back({rows_prefix(prefix_) + row.key, row.content});
  }
  return changes;
}

// Writes large contents as blobs. Returns the batch with stored values (encode_row()) instead of
// contents.
journal::Batch EtcdJournal::store_large_rows(const journal::Batch& batch, const Others& others) {
  std::map<std::string, std::optional<std::string>> rows;  // a key may come more than once
  std::map<std::string, const journal::RowChange*> last;
  for (const journal::RowChange& row : batch) last[row.key] = &row;
  for (const auto& [key, row] : last) {
    if (!row->content) {
      rows[key] = std::nullopt;
    } else if (row->content->size() <= limits_.row_bytes) {
      rows[key] = encode_row(*row->content);
    } else {
      const std::string blob = concat(number_ + 1);
      loose_blobs_.insert(blob);
      write_parts(blob_prefix(prefix_, blob), *row->content, others);
      rows[key] = encode_row_of_blob(blob, parts_of(*row->content, limits_.txn_bytes));
    }
  }
  journal::Batch stored;
  for (auto& [key, value] : rows) stored.push_back({key, std::move(value)});
  return stored;
}

void EtcdJournal::write_parts(const std::string& prefix, std::string_view bytes,
                              const Others& others) {
  for (std::size_t part = 0; part * limits_.txn_bytes < bytes.size(); ++part) {
    const std::string_view content = bytes.substr(part * limits_.txn_bytes, limits_.txn_bytes);
    take({{{prefix + part_name(part), std::string(content)}}, {}});
    let(others);
  }
}

// Erases useless keys, which each new leader would read again.
void EtcdJournal::tidy() {
  if (log_is_dirty_) {
    take({{{log_prefix(prefix_), std::nullopt, 0, true}}, [this] { log_is_dirty_ = false; }});
  }
  while (!unreadable_rows_.empty()) {
    const std::size_t count = std::min(unreadable_rows_.size(), limits_.txn_changes);
    const journal::Batch rows(unreadable_rows_.end() - static_cast<std::ptrdiff_t>(count),
                              unreadable_rows_.end());
    take({changes_of(rows),
          [this, count] { unreadable_rows_.resize(unreadable_rows_.size() - count); }});
  }
}

void EtcdJournal::write_log(const journal::Batch& rows, const Others& others) {
  log_is_dirty_ = true;
  const std::string bytes = encode_log(rows);
  write_parts(log_prefix(prefix_), bytes, others);
  const Parts parts = parts_of(bytes, limits_.txn_bytes);
  take({{{log_commit_key(prefix_), encode_parts(parts)}}, [this, rows] {
          note_rows(rows);
          log_ = rows;
        }});
  // The batch is kept. If carrying it out fails now, the next commit tries it again, and throws if
  // that fails.
  try {
    carry_out_log(others);
  } catch (const Error& error) {
    log_debug(error.what());
  } catch (const journal::Deposed& deposed) {
    log_debug(deposed.what());
  }
}

void EtcdJournal::carry_out_log(const Others& others) {
  while (log_) {
    journal::Batch part;
    std::size_t num_bytes = 0;
    for (auto row = log_->rbegin(); row != log_->rend(); ++row) {
      num_bytes += row->key.size() + (row->content ? row->content->size() : 0);
      if (!part.empty() && num_bytes > limits_.txn_bytes) break;
      part.push_back(*row);
      if (part.size() == limits_.txn_changes) break;
    }
    Step step;
    step.changes = changes_of(part);
    if (part.size() == log_->size()) {
      step.changes.push_back({log_prefix(prefix_), std::nullopt, 0, true});
      step.taken = [this] { log_.reset(), log_is_dirty_ = false; };
    } else {
      step.taken = [this, count = part.size()] { log_->resize(log_->size() - count); };
    }
    take(std::move(step));
    if (log_) let(others);
  }
}

void EtcdJournal::note_rows(const journal::Batch& rows) {
  for (const journal::RowChange& row : rows) {
    if (const auto old = blobs_.find(row.key); old != blobs_.end()) {
      rubbish_.insert(old->second);
      blobs_.erase(old);
    }
    const auto stored = row.content ? decode_row(*row.content) : std::nullopt;
    if (!stored || stored->blob.empty()) continue;
    blobs_[row.key] = stored->blob;
    loose_blobs_.erase(stored->blob);
  }
}

void EtcdJournal::add_rubbish(Step& step) {
  std::vector<std::string> blobs;
  for (const std::string& blob : rubbish_) {
    if (blobs.size() == kRubbishAtOnce) break;
    blobs.push_back(blob);
    step.changes.push_back({blob_prefix(prefix_, blob), std::nullopt, 0, true});
  }
  if (blobs.empty()) return;
  step.taken = [this, blobs = std::move(blobs), taken = std::move(step.taken)] {
    for (const std::string& blob : blobs) rubbish_.erase(blob);
    if (taken) taken();
  };
}

// ---- reading earlier leaders' rows ----

journal::Content EtcdJournal::load() {
  DDPRUN_CHECK(!loaded_);
  // From here on no other process changes the keys, unless this one is deposed: then commit()
  // throws.
  check_leadership();
  Keys keys;
  for (KeyValue& key : store_->get_prefix(prefix_ + "/")) {
    std::string name = key.key;
    keys.emplace(std::move(name), std::move(key));
  }
  journal::Content content;
  read_clock(keys, content);
  journal::Rows stored;
  visit_prefix(keys, rows_prefix(prefix_), [&](const std::string& row, const KeyValue& key) {
    stored.emplace(row, key.value);
  });
  read_log(keys, stored, content);
  read_rows(keys, stored, content);
  loaded_ = true;
  return content;
}

void EtcdJournal::read_clock(const Keys& keys, journal::Content& content) {
  const auto key = keys.find(clock_key(prefix_));
  if (key == keys.end()) return;  // the first leader
  clock_revision_ = key->second.mod_revision;
  const auto clock = decode_clock(key->second.value);
  if (!clock || clock->number > kMaxNumber) {
    content.losses.push_back(concat(key->first, " of ", name_, " can't be read"));
    return;
  }
  if (clock->format > ClockRow().format) {
    throw_error(ErrorCode::kUnsupported, name_, " is of a newer ddprund (format ", clock->format,
                ", this one knows ", ClockRow().format, "): install that one");
  }
  number_ = clock->number;
  if (!boot_.empty() && clock->boot == boot_) return;
  // The earlier leader's clock showed monotonic_ns at its last commit. That moment is taken as now.
  // So no deadline comes too early; each comes later by the time since that commit.
  content.clock_shift =
      Clock::now().time_since_epoch() - std::chrono::nanoseconds(clock->monotonic_ns);
}

// A valid log replaces the rows that it contains.
void EtcdJournal::read_log(const Keys& keys, journal::Rows& stored, journal::Content& content) {
  visit_prefix(keys, log_prefix(prefix_),
               [&](const std::string&, const KeyValue&) { log_is_dirty_ = true; });
  const auto commit = keys.find(log_commit_key(prefix_));
  if (commit == keys.end()) return;
  const auto parts = decode_parts(commit->second.value);
  const auto bytes = parts ? join_parts(keys, log_prefix(prefix_), *parts) : std::nullopt;
  auto rows = bytes ? decode_log(*bytes) : std::nullopt;
  if (!rows) {
    content.losses.push_back(concat("a batch of rows of ", name_, " can't be read"));
    return;
  }
  journal::apply_batch(*rows, stored);
  log_ = std::move(*rows);
}

void EtcdJournal::read_rows(const Keys& keys, const journal::Rows& stored,
                            journal::Content& content) {
  std::set<std::string> kept;
  for (const auto& [name, value] : stored) {
    auto row = decode_row(value);
    std::optional<std::string> bytes;
    if (row && row->blob.empty()) {
      bytes = std::move(row->content);
    } else if (row && kept.insert(row->blob).second) {  // a blob of two rows is damage
      bytes = join_parts(keys, blob_prefix(prefix_, row->blob), row->parts);
    }
    if (!bytes) {
      content.losses.push_back(concat("row \"", one_line(name), "\" of ", name_, " can't be read"));
      unreadable_rows_.push_back({name, std::nullopt});
      continue;
    }
    if (!row->blob.empty()) blobs_[name] = row->blob;
    content.rows.emplace(name, std::move(*bytes));
  }
  kept.clear();
  for (const auto& [name, blob] : blobs_) kept.insert(blob);
  visit_prefix(keys, blobs_prefix(prefix_), [&](const std::string& name, const KeyValue&) {
    std::string blob = name.substr(0, name.find('/'));
    // Even if the clock's row is lost, no new blob may get an existing id.
    number_ = std::max(number_, number_of_blob(blob).value_or(0));
    if (!kept.contains(blob)) loose_blobs_.insert(std::move(blob));
  });
}

}  // namespace ddprun::ha
