// SPDX-License-Identifier: Apache-2.0
// The rows of a proxied store in the journal (docs/durability.md). They have its nodes' requests in
// the order in which they took effect. From time to time a snapshot replaces all earlier rows.
// Rows:
//   stores/JOB/ROUND/base/PIECE   a snapshot's number, from 1, and the snapshot
//   stores/JOB/ROUND/log/NUMBER   the number of the snapshot before it (0: none), and a turn;
//                                 numbers begin at 0 after each snapshot: rows are replaced, not
//                                 erased, which costs a journal less. One with the number of an
//                                 earlier snapshot is left over, and means nothing.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/journal/row.h"
#include "rendezvous/store/proxied_store.h"

namespace ddprun::rendezvous {

class StoreRows {
 public:
  StoreRows(std::uint64_t job, std::uint64_t round);

  void add(const store::ProxiedStore::Turn& turn, journal::Batch& batch);

  // Returns whether the log is much longer than the last snapshot.
  bool wants_snapshot() const { return log_bytes_ > kMinLogBytes && log_bytes_ > 2 * base_bytes_; }
  void replace(std::string_view snapshot, journal::Batch& batch);

  // Erases all rows for good: nothing is added any more.
  void erase(journal::Batch& batch);

  // Restores `store`, which must be empty, from these rows, and this object with it. Throws
  // Error(kProtocol) if rows are missing or invalid.
  void restore(const journal::Rows& rows, store::ProxiedStore& store);

  struct Name {
    std::uint64_t job = 0, round = 0;
    friend auto operator<=>(const Name&, const Name&) = default;
  };
  // Returns the stores that have rows, in order.
  static std::vector<Name> names(const journal::Rows& rows);
  // Erases all rows of a store.
  static void erase_all(const journal::Rows& rows, const Name& name, journal::Batch& batch);

 private:
  static constexpr std::size_t kMinLogBytes = std::size_t{1} << 20;
  static constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

  std::string key(std::string_view kind, std::uint64_t number) const;
  void erase_log(std::uint64_t from, journal::Batch& batch);

  const std::string prefix_;
  std::uint64_t snapshot_ = 0;  // the snapshot's number; 0: none
  std::uint64_t num_log_rows_ = 0;
  std::uint64_t num_kept_rows_ = 0;  // in the log, with left-over ones
  std::size_t num_pieces_ = 0;       // of the snapshot
  std::size_t log_bytes_ = 0, base_bytes_ = 0;
  bool is_erased_ = false;
};

}  // namespace ddprun::rendezvous
