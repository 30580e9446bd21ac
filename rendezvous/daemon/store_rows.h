// SPDX-License-Identifier: Apache-2.0
// A proxied store in the journal (docs/durability.md). It has what its nodes said, in the order in
// which it took effect. From time to time a snapshot takes the place of all that came before. Rows:
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

  // The log is longer than what it made.
  bool wants_snapshot() const { return log_bytes_ > kMinLogBytes && log_bytes_ > 2 * base_bytes_; }
  void replace(std::string_view snapshot, journal::Batch& batch);

  // For good: nothing is added to them any more.
  void erase(journal::Batch& batch);

  // Makes `store`, which is empty, the one that these rows keep, and this its rows. Throws
  // Error(kProtocol): some are missing, or make no sense.
  void restore(const journal::Rows& rows, store::ProxiedStore& store);

  struct Name {
    std::uint64_t job = 0, round = 0;
    friend auto operator<=>(const Name&, const Name&) = default;
  };
  // The stores of which there are rows, in order.
  static std::vector<Name> names(const journal::Rows& rows);
  // Whatever rows a store has.
  static void erase_all(const journal::Rows& rows, const Name& name, journal::Batch& batch);

 private:
  static constexpr std::size_t kMinLogBytes = std::size_t{1} << 20;
  static constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

  std::string key(std::string_view kind, std::uint64_t number) const;
  void erase_log(std::uint64_t from, journal::Batch& batch);

  const std::string prefix_;
  std::uint64_t snapshot_ = 0;  // its number; 0: none
  std::uint64_t num_log_rows_ = 0;
  std::uint64_t num_kept_rows_ = 0;  // of the log, those that are left over included
  std::size_t num_pieces_ = 0;       // of the snapshot
  std::size_t log_bytes_ = 0, base_bytes_ = 0;
  bool is_erased_ = false;
};

}  // namespace ddprun::rendezvous
