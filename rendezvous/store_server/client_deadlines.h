// SPDX-License-Identifier: Apache-2.0
// Clients that have to do something in time: shake hands, or take their replies. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/store_server/connection_table.h"

namespace ddprun::store {

class ClientDeadlines {
 public:
  // The time-outs are StoreServerOptions'. `connections` outlives this.
  ClientDeadlines(std::chrono::milliseconds handshake_timeout,
                  std::chrono::milliseconds stall_timeout, const ConnectionTable& connections);

  void await_handshake(const Connection& connection, Clock::time_point now);
  // It is blocked. Once until check() finds that it reads again.
  void await_reading(Connection& connection);

  // Calls `close` for each that is late.
  using Close = std::function<void(Connection& connection, const std::string& reason)>;
  void check(Clock::time_point now, const Close& close);
  // How soon to check again. Nobody is waited for: not at all.
  std::chrono::milliseconds interval() const;
  bool is_empty() const { return handshakes_.empty() && readers_.empty(); }

  // Clients whose replies had to wait at the last check or since.
  std::size_t num_slow_readers() const { return readers_.size(); }

 private:
  struct Handshake {
    Handle handle;
    Clock::time_point since;
  };

  void check_handshakes(Clock::time_point now, const Close& close);
  bool is_no_reader_to_watch(Handle handle, Clock::time_point now, const Close& close);

  const std::chrono::milliseconds handshake_timeout_;
  const std::chrono::milliseconds stall_timeout_;
  const ConnectionTable& connections_;
  std::deque<Handshake> handshakes_;  // Oldest first; some have shaken hands or gone.
  std::vector<Handle> readers_;       // Were blocked; some read again or have gone.
};

}  // namespace ddprun::store
