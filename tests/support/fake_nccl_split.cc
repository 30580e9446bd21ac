// SPDX-License-Identifier: Apache-2.0
// FakeNccl's splits. As the real one's, the handle of what is made is written by whichever thread
// has made it, and also where that is good for nothing but an abort.
#include <algorithm>
#include <tuple>

#include "tests/support/fake_nccl_parts.h"

namespace ddprun::test {

using nccl::Comm;
using nccl::Result;

Result FakeNccl::comm_split(Comm comm, int color, int key, Comm* made) {
  Entry entry(*this, comm, "comm_split");
  if (!entry.ok()) return entry.result();
  Lock lock(mutex_);
  if (color < 0) return Result::kInvalidArgument;
  Rank& rank = *entry.rank();
  rank.in_progress = true;
  rank.polls_left = in_progress_polls_;
  *made = nullptr;
  if (const Result fault = take_fault(rank.rank, "comm_split_later"); fault != Result::kSuccess) {
    rank.failed = fault;
    *made = make_half_made(rank.rank);
    return Result::kInProgress;
  }
  auto& split = rank.group->splits[++rank.num_splits];
  if (!split) split = std::make_shared<Split>();
  rank.split = split;
  split->places[rank.rank] = {color, key, made};
  if (static_cast<int>(split->places.size()) == rank.group->size) {
    const std::shared_ptr<Split> whole = split;
    rank.group->splits.erase(rank.num_splits);
    finish(*whole);
  }
  return Result::kInProgress;
}

void FakeNccl::finish(Split& split) {
  std::vector<std::tuple<int, int, int>> order;  // color, key, rank of the parent
  for (const auto& [rank, place] : split.places) order.emplace_back(place.color, place.key, rank);
  std::sort(order.begin(), order.end());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && std::get<0>(order[end]) == std::get<0>(order[begin])) ++end;
    auto group = std::make_shared<Group>();
    group->size = group->num_joined = static_cast<int>(end - begin);
    for (std::size_t i = begin; i < end; ++i) {
      *split.places.at(std::get<2>(order[i])).made = make_comm(group, static_cast<int>(i - begin));
    }
    begin = end;
  }
  split.places.clear();  // NCCL writes there no more
  split.done = true;
}

Comm FakeNccl::make_half_made(int rank) {
  auto group = std::make_shared<Group>();
  group->size = group->num_joined = 1;
  const Comm comm = make_comm(group, rank);
  comms_.at(comm)->failed = Result::kInternalError;
  return comm;
}

void FakeNccl::leave_split(Rank& rank) {
  rank.split->places.erase(rank.rank);  // so that it is never whole
  rank.split = nullptr;
}

}  // namespace ddprun::test
