// SPDX-License-Identifier: Apache-2.0
// A StoreState as bytes and back. The order of what waits is kept: who is woken first depends on
// it.
#include "common/error.h"
#include "rendezvous/store/store_state.h"

namespace ddprun::store {

void StoreState::save(std::string* out) const {
  append_u64(values_.size(), out);
  for (const auto& [key, value] : values_) {
    append_vector(key, out);
    append_vector(*value, out);
  }
  append_u64(queues_.size(), out);
  for (const auto& [key, queue] : queues_) {
    append_vector(key, out);
    append_u64(queue.size(), out);
    for (const SharedValue& value : queue) append_vector(*value, out);
  }
  append_u64(watchers_.size(), out);
  for (const auto& [key, watchers] : watchers_) {
    save_waits(watchers.waits, out);
    save_waits(watchers.barriers, out);
  }
  append_u64(offered_to_.size(), out);
  for (const auto& [connection, keys] : offered_to_) {
    append_u64(connection, out);
    append_u64(keys.size(), out);
    for (const std::string& key : keys) append_vector(key, out);
  }
}

void StoreState::load(SnapshotReader& in) {
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    const std::string_view key = in.text();
    assign(key, in.text());
  }
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    const std::string_view key = in.text();
    auto& queue = queues_[std::string(key)];
    for (std::uint64_t elements = in.integer(); elements > 0; --elements) {
      const std::string_view value = in.text();
      queue.push_back(make_value(value));
      key_bytes_ += key.size();
      value_bytes_ += value.size();
      ++num_entries_;
    }
  }
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    load_waits(in, false);
    load_waits(in, true);
  }
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    auto& keys = offered_to_[static_cast<ConnectionId>(in.integer())];
    for (std::uint64_t offers = in.integer(); offers > 0; --offers) keys.emplace_back(in.text());
  }
}

void StoreState::save_waits(const WaitList& waits, std::string* out) {
  append_u64(waits.size(), out);
  for (const Wait& wait : waits) {
    append_u64(wait.connection, out);
    append_u64(wait.watched, out);
    append_u64(wait.keys.size(), out);
    for (const std::string& key : wait.keys) append_vector(key, out);
  }
}

void StoreState::load_waits(SnapshotReader& in, bool are_barriers) {
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    Wait wait;
    wait.connection = static_cast<ConnectionId>(in.integer());
    wait.watched = static_cast<std::size_t>(in.integer());
    wait.is_barrier = are_barriers;
    for (std::uint64_t keys = in.integer(); keys > 0; --keys) wait.keys.emplace_back(in.text());
    if (wait.watched >= wait.keys.size()) {
      throw Error(ErrorCode::kProtocol, "what was kept of a store has a wait for nothing");
    }
    add_wait(std::move(wait));
  }
}

}  // namespace ddprun::store
