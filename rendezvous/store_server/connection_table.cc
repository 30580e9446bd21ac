// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/connection_table.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ddprun::store {

std::uint32_t ConnectionTable::next_generation() {
  const std::uint32_t generation = next_generation_;
  if (++next_generation_ == 0) next_generation_ = 1;  // 0 is a listener's
  return generation;
}

void ConnectionTable::insert(std::unique_ptr<Connection> connection) {
  const std::size_t index = connection->id();
  if (index >= connections_.size()) connections_.resize(std::max(index + 1, index * 3 / 2));
  DDPRUN_CHECK(!connections_[index]);
  connections_[index] = std::move(connection);
  ++size_;
}

void ConnectionTable::erase(ConnectionId id) {
  connections_[id].reset();
  --size_;
}

}  // namespace ddprun::store
