// SPDX-License-Identifier: Apache-2.0
// The journal's rows in an etcd that several ddprunds share (docs/ha.md). Only the leader can write
// them; an earlier leader can't any more. Blocking; one thread at a time, except for cancel().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/ha/key_store.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/row.h"

namespace ddprun::ha {

// ---- every key that ddprund has in etcd, below the prefix of --ha ----

// Names the leader. It is erased when the leader's lease ends. It guards every change of another
// key.
inline std::string leader_key(const std::string& prefix) { return prefix + "/leader"; }

// Has the last transaction's number, and the time by the leader's monotonic clock. Each transaction
// changes it.
inline std::string clock_key(const std::string& prefix) { return prefix + "/clock"; }

// One of the journal's rows: rows/jobs/3/state.
inline std::string rows_prefix(const std::string& prefix) { return prefix + "/rows/"; }

// The content of one large row, in parts: blobs/ID/PART.
inline std::string blobs_prefix(const std::string& prefix) { return prefix + "/blobs/"; }
inline std::string blob_prefix(const std::string& prefix, const std::string& blob) {
  return blobs_prefix(prefix) + blob + "/";
}

// A batch of many rows, in parts: log/PART. It is valid once log/commit exists.
inline std::string log_prefix(const std::string& prefix) { return prefix + "/log/"; }
inline std::string log_commit_key(const std::string& prefix) { return prefix + "/log/commit"; }

// ---- the journal's rows as bytes ----

// Describes bytes that are kept in parts.
struct Parts {
  std::size_t num_parts = 0;
  std::size_t num_bytes = 0;
  std::uint32_t checksum = 0;

  friend bool operator==(const Parts&, const Parts&) = default;
};

Parts parts_of(std::string_view bytes, std::size_t part_bytes);
std::string encode_parts(const Parts& parts);  // e.g. "3 2500000 1f2e3d4c"
std::optional<Parts> decode_parts(std::string_view text);

// Returns the name of a part below its prefix. Names have the parts' order.
std::string part_name(std::size_t number);

// A row's value: its content, or the blob that has it.
struct StoredRow {
  std::string content;
  std::string blob;  // the blob's id; empty: see `content`
  Parts parts;       // of the blob
};
std::string encode_row(std::string_view content);
std::string encode_row_of_blob(const std::string& blob, const Parts& parts);
std::optional<StoredRow> decode_row(std::string_view value);  // nullopt: invalid

// Rows with their values, one after another, in the order of their keys. No key comes twice.
std::string encode_log(const journal::Batch& rows);
std::optional<journal::Batch> decode_log(std::string_view bytes);

// The largest valid number of an earlier leader's transaction, and so of a blob. It leaves room for
// all later ones.
inline constexpr std::int64_t kMaxNumber = 999'999'999'999'999'999;
// Returns the number of a blob's id; nullopt: it is no id.
std::optional<std::int64_t> number_of_blob(std::string_view id);

// The last transaction's number and its time by the leader's monotonic clock.
struct ClockRow {
  int format = 1;
  std::int64_t number = 0;
  std::int64_t monotonic_ns = 0;
  std::string boot;  // the machine's boot id; empty: not known
};
std::string encode_clock(const ClockRow& row);
std::optional<ClockRow> decode_clock(std::string_view text);

// ---- the journal ----

struct EtcdJournalLimits {
  std::size_t txn_changes = 100;
  std::size_t txn_bytes = std::size_t{1} << 20;
  std::size_t row_bytes = std::size_t{512} << 10;  // larger contents become blobs
  // etcd keeps overwritten values. After so many bytes it is told to forget them. Its own hourly
  // compaction would be too late for a job that writes without a pause.
  std::size_t compact_after_bytes = std::size_t{64} << 20;
};

// Every transaction has two guards. One is the leader's key: once its lease ends, nothing that this
// object does has an effect. The other is the clock's key, which each transaction changes. So a
// transaction without an answer can't take effect after a later one has.
//
// etcd takes 128 changes and 1.5 MiB at once. A batch has no limit, but still takes effect as a
// whole. Large contents are written first, under keys that no row uses yet. If the rest is still
// too large, it is written as a log, which is valid from its last key on. The leader, this or a
// later one, then carries it out part by part.
class EtcdJournal : public journal::BatchWriter {
 public:
  using Limits = EtcdJournalLimits;
  using Keys = std::map<std::string, KeyValue>;

  // `prefix` is that of the keys above. `leadership` is the create_revision of this process'
  // leader_key. `name` is for people. Each leadership needs a new object.
  EtcdJournal(std::unique_ptr<KeyStore> store, std::string name, std::string prefix,
              std::int64_t leadership, Limits limits = {});

  // Returns the rows. Called once, before the first commit(). Throws as commit() does, and may then
  // be tried again. Throws Error(kUnsupported) if a newer ddprund wrote them.
  journal::Content load();

  // Commits the whole batch or nothing. Throws journal::Deposed if this process doesn't lead any
  // more; then nothing of the batch is kept. Throws Error(kUnavailable), … as KeyStore does. Then
  // it isn't known whether the batch is kept, and the next batch must contain it. An empty batch
  // asks the cluster's majority whether this process still leads.
  void commit(const journal::Batch& batch) override { commit_in_parts(batch, {}); }
  // Takes a batch of `others` if it fits into one transaction.
  void commit_in_parts(const journal::Batch& batch, const Others& others) override;

  void cancel() override { store_->cancel(); }
  std::string name() const override { return name_; }

 private:
  // One transaction, and a function to call once it has taken effect.
  struct Step {
    std::vector<KeyChange> changes;
    std::function<void()> taken;
  };
  struct Unsure {  // a step without an answer
    std::int64_t number = 0;
    std::function<void()> taken;
  };

  void check_leadership();
  void take(Step step);
  void compact_at_times();
  void settle();
  TxnResult change(std::int64_t number, std::vector<KeyChange> changes);
  // Called after a refusal. Accepts the last transaction in etcd as one of ours if its number is in
  // [first, last]. Else throws journal::Deposed.
  void follow(const TxnResult& refused, std::int64_t first, std::int64_t last);
  [[noreturn]] void depose() const;

  journal::Batch store_large_rows(const journal::Batch& batch, const Others& others);
  void write_parts(const std::string& prefix, std::string_view bytes, const Others& others);
  void write_log(const journal::Batch& rows, const Others& others);
  void carry_out_log(const Others& others);
  void let(const Others& others);
  bool commit_between(const journal::Batch& batch);
  void tidy();
  bool fits(const journal::Batch& rows) const;
  std::vector<KeyChange> changes_of(const journal::Batch& rows) const;
  void note_rows(const journal::Batch& rows);
  void add_rubbish(Step& step);

  void read_clock(const Keys& keys, journal::Content& content);
  void read_log(const Keys& keys, journal::Rows& stored, journal::Content& content);
  void read_rows(const Keys& keys, const journal::Rows& stored, journal::Content& content);

  const std::unique_ptr<KeyStore> store_;
  const std::string name_, prefix_;
  const Guard leader_;
  const Limits limits_;
  const std::string boot_;

  bool loaded_ = false;
  std::size_t bytes_since_compaction_ = 0;
  std::int64_t clock_revision_ = 0;  // of the last known transaction
  std::int64_t last_taken_ = 0;      // that transaction's number
  std::int64_t number_ = 0;          // of the last transaction that was sent
  std::optional<Unsure> unsure_;
  std::map<std::string, std::string> blobs_;  // row → id of its blob
  std::set<std::string> loose_blobs_;         // blobs of no row, as far as known
  std::set<std::string> rubbish_;             // blobs to erase with later steps
  journal::Batch unreadable_rows_;            // rows to erase
  bool log_is_dirty_ = false;                 // parts of an invalid log may exist
  std::optional<journal::Batch> log_;         // a valid log that isn't fully carried out
};

}  // namespace ddprun::ha
