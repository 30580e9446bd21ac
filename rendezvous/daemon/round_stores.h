// SPDX-License-Identifier: Apache-2.0
// The c10d key spaces on the daemon's own port: a plain one, and in static mode one per round
// (--master-addr). io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "rendezvous/daemon/store_limits.h"
#include "rendezvous/store_server/store_server.h"

namespace ddprun::rendezvous {

class RoundStores {
 public:
  // Of `of_job` and `in_all` bytes and connections count: those for each round's key space, these
  // for the plain one, which is no job's.
  RoundStores(boost::asio::io_context& io, store::StoreServerOptions options, StoreLimits of_job,
              StoreLimits in_all);

  // Connections from now on get an empty key space of this round; older ones keep theirs. Needs no
  // descriptor: the first connection's adopt() does.
  void begin_round(const std::string& run_id, std::uint64_t round);
  // Connections from now on get the plain key space again.
  void end_rounds();

  // Out of descriptors, or beyond the limit: closes the connection, with a log line.
  void adopt(UniqueFd connection);

  // Calls `unused` once, from the io context, when no round's key space has a client any more, or
  // after `limit`.
  void when_unused(std::chrono::milliseconds limit, std::function<void()> unused);

  struct Usage {
    store::StoreServerStats plain;
    std::size_t num_rounds = 0;       // whose key spaces are there
    store::StoreServerStats rounds;   // of all of them
    std::uint64_t past_requests = 0;  // of those that are no more
  };
  Usage usage() const;

 private:
  void retire_current();
  void drop_unused();
  void say_if_unused();

  boost::asio::io_context& io_;
  const store::StoreServerOptions options_;
  const StoreLimits of_job_, in_all_;
  boost::asio::steady_timer timer_;
  // Made when first asked for.
  std::unique_ptr<store::StoreServer> plain_;
  std::unique_ptr<store::StoreServer> current_;
  std::optional<std::string> current_name_;                   // set: a round is live
  std::vector<std::unique_ptr<store::StoreServer>> retired_;  // until their last client has gone
  std::uint64_t past_requests_ = 0;  // of the rounds' stores that are no more
  bool timing_ = false;
  boost::asio::steady_timer patience_;
  std::function<void()> unused_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for a wait that outlives this
};

}  // namespace ddprun::rendezvous
