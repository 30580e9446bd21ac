// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "rendezvous/store/store_state.h"

namespace ddprun::store {
namespace {

Request of(Opcode opcode, std::string_view key, std::string_view value = {}) {
  Request request;
  request.opcode = opcode;
  request.key = key;
  request.value = value;
  return request;
}

}  // namespace

void StoreState::each_request(const EachRequest& each) const {
  // A barrier's arrivals are in its count; those that wait arrive once more.
  for (const auto& [key, value] : values_) {
    const auto watchers = watchers_.find(key);
    const std::size_t num_waiting =
        watchers == watchers_.end() ? 0 : watchers->second.barriers.size();
    if (num_waiting == 0) {
      each(kNobody, of(Opcode::kSet, key, *value));
      continue;
    }
    std::int64_t count = 0;
    for (const char digit : *value) count = count * 10 + (digit - '0');
    const std::string before = std::to_string(count - static_cast<std::int64_t>(num_waiting));
    each(kNobody, of(Opcode::kSet, key, before));
  }
  // Whose WAIT an element has ended, and who has not asked for it yet, waits for it once more.
  for (const auto& [connection, keys] : offered_to_) {
    for (const std::string& key : keys) {
      if (!queues_.contains(key)) continue;
      Request wait = of(Opcode::kWait, {});
      wait.keys = {key};
      each(connection, wait);
    }
  }
  for (const auto& [key, watchers] : watchers_) {
    for (const Wait& waiting : watchers.waits) {
      Request wait = of(Opcode::kWait, {});
      wait.keys.assign(waiting.keys.begin(), waiting.keys.end());
      each(waiting.connection, wait);
    }
    for (const Wait& waiting : watchers.barriers) {
      Request barrier = of(Opcode::kBarrier, key);
      barrier.number = std::numeric_limits<std::int64_t>::max();
      each(waiting.connection, barrier);
    }
  }
  for (const auto& [key, queue] : queues_) {
    for (const SharedValue& value : queue) each(kNobody, of(Opcode::kQueuePush, key, *value));
  }
}

}  // namespace ddprun::store
