// SPDX-License-Identifier: Apache-2.0
// FakeNccl's splits.
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
  auto& place = rank.group->splits[++rank.num_splits];
  if (!place) place = std::make_shared<Split>();
  const std::shared_ptr<Split> split = place;
  split->places[rank.rank] = {color, key};
  if (static_cast<int>(split->places.size()) == rank.group->size) {
    rank.group->splits.erase(rank.num_splits);
    finish(*rank.group, *split);
    changed_.notify_all();
  }
  if (!wait_for_others(lock, [&] { return split->done; })) return Result::kInternalError;
  *made = split->places.at(rank.rank).made;
  return Result::kSuccess;
}

void FakeNccl::finish(const Group& parent, Split& split) {
  std::vector<std::tuple<int, int, int>> order;  // color, key, rank in the parent
  for (const auto& [rank, place] : split.places) order.emplace_back(place.color, place.key, rank);
  std::sort(order.begin(), order.end());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && std::get<0>(order[end]) == std::get<0>(order[begin])) ++end;
    auto group = std::make_shared<Group>();
    group->size = group->num_joined = static_cast<int>(end - begin);
    for (std::size_t i = begin; i < end; ++i) {
      group->nodes.push_back(parent.nodes.at(static_cast<std::size_t>(std::get<2>(order[i]))));
      split.places.at(std::get<2>(order[i])).made = make_comm(group, static_cast<int>(i - begin));
    }
    begin = end;
  }
  split.done = true;
}

}  // namespace ddprun::test
