// SPDX-License-Identifier: Apache-2.0
// A server's own key space. Pure.
#pragma once

#include "rendezvous/store_server/backend.h"

namespace ddprun::store {

class LocalBackend final : public Backend {
 public:
  explicit LocalBackend(std::size_t max_total_bytes) : state_(max_total_bytes) {}

  const Outcome& step(ConnectionId from, const Request& request, std::string_view) override {
    return state_.step(from, request);
  }
  std::size_t work_of(ConnectionId from, const Request& request) const override {
    return state_.work_of(from, request);
  }
  const Outcome& disconnect(ConnectionId connection) override {
    return state_.disconnect(connection);
  }
  bool has_room() const override { return true; }
  std::size_t num_keys() const override { return state_.num_keys(); }
  std::size_t content_bytes() const override { return state_.content_bytes(); }
  std::size_t total_bytes() const override { return state_.total_bytes(); }

 private:
  StoreState state_;
};

}  // namespace ddprun::store
