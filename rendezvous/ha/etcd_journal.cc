// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/etcd_journal.h"

#include <algorithm>
#include <utility>

#include "common/boot_id.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/key_names.h"

namespace ddprun::ha {
namespace {

constexpr std::size_t kRubbishAtOnce = 20;

}  // namespace

EtcdJournal::EtcdJournal(std::unique_ptr<KeyStore> store, std::string name, std::string prefix,
                         std::int64_t leadership, Limits limits)
    : store_(std::move(store)),
      name_(std::move(name)),
      prefix_(std::move(prefix)),
      leader_{leader_key(prefix_), leadership, {}},
      limits_(limits),
      boot_(boot_id()) {}

EtcdJournal::EtcdJournal(std::unique_ptr<KeyStore> store, std::string name, std::string prefix,
                         std::int64_t leadership)
    : EtcdJournal(std::move(store), std::move(name), std::move(prefix), leadership, Limits()) {}

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

// Where something else than a leader changes what is kept (a backup that was put back), what this
// process knows is not what is there: it is as good as deposed.
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
    follow(result, number, number);  // an attempt whose answer was lost
  }
  if (step.taken) step.taken();
}

// Whether the step that was not answered has taken effect; if it hasn't, it can't any more.
void EtcdJournal::settle() {
  if (!unsure_) return;
  const TxnResult result = change(++number_, {});
  if (result.held) {
    clock_revision_ = result.revision;
    last_taken_ = number_;
  } else {
    follow(result, unsure_->number, number_);  // that step, or an earlier try to settle it
  }
  if (last_taken_ == unsure_->number && unsure_->taken) unsure_->taken();
  unsure_.reset();
}

// ---- batches ----

void EtcdJournal::commit(const journal::Batch& batch) {
  DDPRUN_CHECK(loaded_);
  if (batch.empty()) return check_leadership();
  settle();
  for (const std::string& blob : std::exchange(loose_blobs_, {})) {
    rubbish_.insert(blob);
  }
  carry_out_log();
  tidy();
  const journal::Batch rows = store_large_rows(batch);
  if (!fits(rows)) return write_log(rows);
  take({changes_of(rows), [this, rows] { note_rows(rows); }});
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

// The batch, with the values that are kept in place of the rows' contents.
journal::Batch EtcdJournal::store_large_rows(const journal::Batch& batch) {
  std::map<std::string, std::optional<std::string>> rows;  // a key may be there more than once
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
      write_parts(blob_prefix(prefix_, blob), *row->content);
      rows[key] = encode_row_of_blob(blob, parts_of(*row->content, limits_.txn_bytes));
    }
  }
  journal::Batch stored;
  for (auto& [key, value] : rows) stored.push_back({key, std::move(value)});
  return stored;
}

void EtcdJournal::write_parts(const std::string& prefix, std::string_view bytes) {
  for (std::size_t part = 0; part * limits_.txn_bytes < bytes.size(); ++part) {
    const std::string_view content = bytes.substr(part * limits_.txn_bytes, limits_.txn_bytes);
    take({{{prefix + part_name(part), std::string(content)}}, {}});
  }
}

// What is of no use to anybody, and would be read again by each leader.
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

void EtcdJournal::write_log(const journal::Batch& rows) {
  log_is_dirty_ = true;
  const std::string bytes = encode_log(rows);
  write_parts(log_prefix(prefix_), bytes);
  const Parts parts = parts_of(bytes, limits_.txn_bytes);
  take({{{log_commit_key(prefix_), encode_parts(parts)}}, [this, rows] {
          note_rows(rows);
          log_ = rows;
        }});
  // The batch is kept. What stops its being carried out stops the next commit, too.
  try {
    carry_out_log();
  } catch (const Error& error) {
    log_debug(error.what());
  } catch (const journal::Deposed& deposed) {
    log_debug(deposed.what());
  }
}

void EtcdJournal::carry_out_log() {
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

}  // namespace ddprun::ha
