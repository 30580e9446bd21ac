// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/peer_board.h"

#include <sstream>

#include "common/text.h"

namespace ddprun::nccl {

void PeerBoard::post_gave_up(std::string_view reason) {
  // An absent key matches an empty `expected`, so only the first value is stored.
  store_.compare_set(prefix_ + "gave_up", "", std::to_string(rank_) + " " + std::string(reason));
}

std::optional<PeerNotice> PeerBoard::gave_up() {
  const std::string key = prefix_ + "gave_up";
  if (!store_.check({key})) return std::nullopt;
  std::istringstream text(store_.get(key));
  PeerNotice notice;
  text >> notice.rank;
  text.get();
  std::getline(text, notice.reason, '\0');
  return notice;
}

std::vector<int> PeerBoard::not_waiting(std::uint64_t seq) {
  std::vector<bool> waiting(static_cast<std::size_t>(size_), false);
  const std::string key = waiting_key(seq);
  if (store_.check({key})) {
    std::istringstream text(store_.get(key));
    for (int rank = 0; text >> rank;) {
      if (rank >= 0 && rank < size_) waiting[static_cast<std::size_t>(rank)] = true;
    }
  }
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!waiting[static_cast<std::size_t>(rank)]) missing.push_back(rank);
  }
  return missing;
}

std::string list_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMaxNamed = 8;
  if (ranks.size() > kMaxNamed + 1) return first_listed(ranks, kMaxNamed);
  if (ranks.size() < 2) return listed(ranks);
  const std::span all(ranks);
  return concat(listed(all.first(all.size() - 1)), " and ", all.back());
}

}  // namespace ddprun::nccl
