// SPDX-License-Identifier: Apache-2.0
// A server's connections, by their descriptors. io thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rendezvous/store_server/connection.h"

namespace ddprun::store {

class ConnectionTable {
 public:
  // For a new connection's handle: each has another one.
  std::uint32_t next_generation();
  void insert(std::unique_ptr<Connection> connection);
  void erase(ConnectionId id);

  // Null: there is none, or it has gone.
  Connection* find(ConnectionId id) const {
    return id < connections_.size() ? connections_[id].get() : nullptr;
  }
  Connection* find(Handle handle) const {
    Connection* const connection = find(static_cast<ConnectionId>(handle.fd));
    const bool is_it =
        connection != nullptr && connection->handle().generation == handle.generation;
    return is_it ? connection : nullptr;
  }

  std::size_t size() const { return size_; }

 private:
  std::vector<std::unique_ptr<Connection>> connections_;  // Index: descriptor = ConnectionId.
  std::size_t size_ = 0;
  std::uint32_t next_generation_ = 1;
};

}  // namespace ddprun::store
