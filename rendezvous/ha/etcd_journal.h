// SPDX-License-Identifier: Apache-2.0
// The journal's rows in an etcd that several ddprund share (docs/ha.md): whoever leads writes them,
// and who led before can't any more. Blocking; one thread at a time, but for cancel().
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

// Names the leader; ends with its lease. It guards every change of another key.
inline std::string leader_key(const std::string& prefix) { return prefix + "/leader"; }

// Changed by each transaction: its number, and the time of the leader's monotonic clock.
inline std::string clock_key(const std::string& prefix) { return prefix + "/clock"; }

// One of the journal's rows, as below: rows/jobs/3/state.
inline std::string rows_prefix(const std::string& prefix) { return prefix + "/rows/"; }

// The contents of one large row, in parts: blobs/ID/PART.
inline std::string blobs_prefix(const std::string& prefix) { return prefix + "/blobs/"; }
inline std::string blob_prefix(const std::string& prefix, const std::string& blob) {
  return blobs_prefix(prefix) + blob + "/";
}

// A batch of many rows, in parts, log/PART; it counts once log/commit is there.
inline std::string log_prefix(const std::string& prefix) { return prefix + "/log/"; }
inline std::string log_commit_key(const std::string& prefix) { return prefix + "/log/commit"; }

// ---- the journal's rows as bytes ----

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

// The largest number of an earlier leader's transaction, and so of a blob. It leaves room for all
// of ours.
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

// ---- the journal ----

struct EtcdJournalLimits {
  std::size_t txn_changes = 100;
  std::size_t txn_bytes = std::size_t{1} << 20;
  std::size_t row_bytes = std::size_t{512} << 10;  // larger contents are kept apart
  // etcd keeps what was overwritten. After so many bytes it is told to forget that. Its own
  // compaction by the hour would be too late for a job that writes without a pause.
  std::size_t compact_after_bytes = std::size_t{64} << 20;
};

// Every transaction is guarded twice. By the leader's key: as its lease ends, nothing that this
// object does has an effect any more. And by the clock's key, which each transaction changes: one
// that was sent and not answered can't take effect once a later one has.
//
// etcd takes 128 changes and 1.5 MiB at once; a batch has no limit, and takes effect as a whole all
// the same. Large contents are written before, under keys that no row has yet. If the rest is still
// too large, it is written as a log that counts from its last key on. The leader of that time then
// carries it out row by row.
class EtcdJournal : public journal::BatchWriter {
 public:
  using Limits = EtcdJournalLimits;
  using Keys = std::map<std::string, KeyValue>;

  // `prefix` is that of the keys above, `leadership` the create_revision of its leader_key: of this
  // process' own. `name` is for people. One object for each leadership.
  EtcdJournal(std::unique_ptr<KeyStore> store, std::string name, std::string prefix,
              std::int64_t leadership, Limits limits = {});

  // To be called once, before the first commit(). Throws as commit(), after which it may be tried
  // again, and Error(kUnsupported): a newer ddprund wrote it.
  journal::Content load();

  // All of it, or nothing. Throws journal::Deposed: somebody else leads, or nobody; nothing of the
  // batch is kept. Error(kUnavailable), …, as KeyStore does: whether it is kept isn't known; it
  // must be part of the next batch. An empty batch asks the cluster's majority whether this process
  // is still the leader.
  void commit(const journal::Batch& batch) override;

  void cancel() override { store_->cancel(); }
  std::string name() const override { return name_; }

 private:
  // One transaction, and what is so once it has taken effect.
  struct Step {
    std::vector<KeyChange> changes;
    std::function<void()> taken;
  };
  struct Unsure {  // a step that was not answered
    std::int64_t number = 0;
    std::function<void()> taken;
  };

  void check_leadership();
  void take(Step step);
  void compact_at_times();
  void settle();
  TxnResult change(std::int64_t number, std::vector<KeyChange> changes);
  // After a refusal: takes the last transaction there was for one of ours, with a number in
  // [first, last]. Throws journal::Deposed where it is none.
  void follow(const TxnResult& refused, std::int64_t first, std::int64_t last);
  [[noreturn]] void depose() const;

  journal::Batch store_large_rows(const journal::Batch& batch);
  void write_parts(const std::string& prefix, std::string_view bytes);
  void write_log(const journal::Batch& rows);
  void carry_out_log();
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
  std::int64_t clock_revision_ = 0;  // of the last transaction that we know of
  std::int64_t last_taken_ = 0;      // its number
  std::int64_t number_ = 0;          // of the last one that was sent
  std::optional<Unsure> unsure_;
  std::map<std::string, std::string> blobs_;  // of rows: row → id
  std::set<std::string> loose_blobs_;         // that no row has, as far as we know
  std::set<std::string> rubbish_;             // blobs, to be erased when there is a chance
  journal::Batch unreadable_rows_;            // to be erased
  bool log_is_dirty_ = false;                 // there may be parts of one that doesn't count
  std::optional<journal::Batch> log_;         // counts, and isn't carried out to its end
};

}  // namespace ddprun::ha
