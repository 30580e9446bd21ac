// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/roll_call.h"

namespace ddprun::host {
namespace {

// Stable while its rank is in the call or the one after it.
const CallHeader& call_of(const RankControl& rank, std::uint32_t sequence) {
  return rank.calls[sequence & 1].header;
}

}  // namespace

RollCallNote begin_roll_call(const NodeGroup& group, int local, std::uint32_t sequence) {
  RollCallNote note;
  note.origin_node = group.topology().node_index();
  note.origin_local = local;
  note.caller = group.rank_of(local);
  note.call = call_of(group.control(local), sequence);
  answer_roll_call(group, note);
  return note;
}

void answer_roll_call(const NodeGroup& group, RollCallNote& note) {
  const std::uint32_t sequence = note.call.sequence;
  for (int local = 0; local < group.num_local(); ++local) {
    const RankControl& rank = group.control(local);
    const std::uint32_t entered = rank.entered.value.load(std::memory_order_acquire);
    if (static_cast<std::int32_t>(entered - sequence) < 0) {
      if (note.num_absent < RollCallNote::kMaxNamed) {
        note.absent[note.num_absent] = group.rank_of(local);
      }
      ++note.num_absent;
    } else if (entered == sequence && !(call_of(rank, sequence) == note.call)) {
      note.deviator = group.rank_of(local);
      note.deviation = call_of(rank, sequence);
    }
  }
}

void post_roll_call(NodeGroup& group, const RollCallNote& note) {
  if (note.origin_local < 0 || note.origin_local >= group.num_local()) return;
  RollCallAnswer& answer = group.control(note.origin_local).roll_call;
  // Asked twice: the first answer stays, for its rank may be reading it.
  if (answer.sequence.load(std::memory_order_relaxed) == note.call.sequence) return;
  answer.note = note;
  answer.sequence.store(note.call.sequence, std::memory_order_release);
}

std::optional<RollCallNote> read_roll_call(const NodeGroup& group, std::uint32_t sequence) {
  const RollCallAnswer& answer = group.control(group.local_index()).roll_call;
  if (answer.sequence.load(std::memory_order_acquire) != sequence) return std::nullopt;
  return answer.note;
}

}  // namespace ddprun::host
