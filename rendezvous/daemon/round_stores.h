// SPDX-License-Identifier: Apache-2.0
// The c10d key spaces on the daemon's port: a plain one, static mode's rounds'. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/unique_fd.h"
#include "rendezvous/store_server/store_server.h"

namespace ddprun::rendezvous {

// Limits of the stores in the rendezvous, for one job's workers or in all. 0 requests: no limit. 0
// of the others is a limit like any other.
struct StoreLimits {
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;        // keys, values, waits, 128 for each, and what is under way
  std::uint64_t connections = 0;  // of workers, through their nodes' proxies
  std::uint64_t requests = 0;     // a second
};
// The limits of ddprund without --job-limits and --limits, and of a rendezvous within ddprun. All
// stores together may take 16 GiB, or half of what this process may use where that is less.
StoreLimits default_job_limits();
StoreLimits default_total_limits();
// Their bytes in an etcd, which has 2 GiB by default, also for what was overwritten.
inline constexpr std::uint64_t kBytesInEtcd = std::uint64_t{512} << 20;

// Changes those that `text` names ("keys=1000,bytes=2GiB"); numbers may end in k, M, G (powers of
// 1,000) or KiB, MiB, GiB. Empty, or what is wrong with it.
std::string set_limits(std::string_view text, StoreLimits& limits);

class RoundStores {
 public:
  // `of_job` limits bytes and connections of a round's key space, `in_all` those of the plain one.
  // `only_user`: over loopback all are for that user's programs and root's alone; nullopt: for all.
  RoundStores(boost::asio::io_context& io, store::StoreServerOptions options, StoreLimits of_job,
              StoreLimits in_all, std::optional<uid_t> only_user = {});

  // Connections from now on get an empty key space of this round; older ones keep theirs. `owner`:
  // takes the place of `only_user` there.
  void begin_round(const std::string& run_id, std::uint64_t round, std::optional<uid_t> owner);
  // Connections from now on get the plain key space again.
  void end_rounds();

  // Out of descriptors, or beyond the limit: closes the connection, with a log line.
  void adopt(UniqueFd connection);

  // Calls `unused` once, from the io context: no round's key space has a client, or after `limit`.
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
  const std::optional<uid_t> only_user_;
  boost::asio::steady_timer timer_;
  // Made when first asked for.
  std::unique_ptr<store::StoreServer> plain_;
  std::unique_ptr<store::StoreServer> current_;
  std::optional<std::string> current_name_;                   // set: a round is live
  std::optional<uid_t> owner_;                                // of that one
  std::vector<std::unique_ptr<store::StoreServer>> retired_;  // until their last client has gone
  std::uint64_t past_requests_ = 0;  // of the rounds' stores that are no more
  bool timing_ = false;
  boost::asio::steady_timer patience_;
  std::function<void()> unused_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for a wait that outlives this
};

}  // namespace ddprun::rendezvous
