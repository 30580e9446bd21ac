// SPDX-License-Identifier: Apache-2.0
// What earlier leaders left.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/etcd_journal.h"
#include "rendezvous/ha/key_names.h"

namespace ddprun::ha {
namespace {

using Keys = std::map<std::string, KeyValue>;

// Those of `keys` that begin with `prefix`, in their order.
template <typename Visit>
void visit_prefix(const Keys& keys, const std::string& prefix, Visit visit) {
  for (auto key = keys.lower_bound(prefix); key != keys.end() && key->first.starts_with(prefix);
       ++key) {
    visit(key->first.substr(prefix.size()), key->second);
  }
}

// nullopt: they are not all there, or not as they were.
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

journal::Content EtcdJournal::load() {
  DDPRUN_CHECK(!loaded_);
  // From here on nobody else changes anything, unless we are deposed: then commit() says so.
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
    throw Error(ErrorCode::kUnsupported,
                concat(name_, " is of a newer ddprund (format ", clock->format, ", this one knows ",
                       ClockRow().format, "): install that one"));
  }
  number_ = clock->number;
  if (!boot_.empty() && clock->boot == boot_) return;
  // Its clock showed monotonic_ns at the last commit, not later than now: what was N seconds ahead
  // then is at most that far ahead now. So no deadline comes earlier than it was meant; it comes
  // later by the time since that commit.
  content.clock_shift =
      Clock::now().time_since_epoch() - std::chrono::nanoseconds(clock->monotonic_ns);
}

// A log that counts is as good as the rows that it is about.
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
  for (const journal::RowChange& row : *rows) {
    if (row.content) {
      stored[row.key] = *row.content;
    } else {
      stored.erase(row.key);
    }
  }
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
    } else if (row && kept.insert(row->blob).second) {  // one that two rows have is damage
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
    // Of a clock that is lost: no blob gets the name of one that is there.
    number_ = std::max(number_, number_of_blob(blob).value_or(0));
    if (!kept.contains(blob)) loose_blobs_.insert(std::move(blob));
  });
}

}  // namespace ddprun::ha
