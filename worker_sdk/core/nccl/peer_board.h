// SPDX-License-Identifier: Apache-2.0
// Messages of one communicator's ranks through the store after something went wrong. A healthy run
// calls nothing here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/store.h"

namespace ddprun::nccl {

struct PeerNotice {
  int rank = 0;
  std::string reason;
};

// Each call is O(1) store requests and throws what the store throws. One thread at a time.
class PeerBoard {
 public:
  // `prefix` starts this communicator's keys.
  PeerBoard(store::Store& store, std::string prefix, int rank, int size)
      : store_(store), prefix_(std::move(prefix)), rank_(rank), size_(size) {}

  // Only the first rank that gives up is recorded, and named by the others; later calls change
  // nothing.
  void post_gave_up(std::string_view reason);
  std::optional<PeerNotice> gave_up();

  // Says: "This rank waits in operation `seq`."
  void post_waiting(std::uint64_t seq) {
    store_.append(waiting_key(seq), std::to_string(rank_) + " ");
  }

  // Returns the ranks that have not said so for `seq`.
  std::vector<int> not_waiting(std::uint64_t seq);

 private:
  std::string waiting_key(std::uint64_t seq) const {
    return prefix_ + "waiting/" + std::to_string(seq);
  }

  store::Store& store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
};

// Returns "3", "3, 5 and 6", or "0, 1, 2, 3, 4, 5, 6, 7 and 120 more".
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace ddprun::nccl
