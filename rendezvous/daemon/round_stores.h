// SPDX-License-Identifier: Apache-2.0
// The c10d key spaces on the daemon's port: a plain one, and those of static mode's rounds. I/O
// thread only.
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

// Limits of the stores in the rendezvous, for one job's workers or for all. `requests` 0 means no
// limit; 0 in the others allows none.
struct StoreLimits {
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;        // keys, values, waits, 128 for each, and messages under way
  std::uint64_t connections = 0;  // of workers, through nodes' proxies
  std::uint64_t requests = 0;     // per second
};
// The limits of ddprund without --job-limits and --limits, and of a rendezvous in ddprun. All
// stores together may take 16 GiB, or half of the memory that this process may use if that is less.
StoreLimits default_job_limits();
StoreLimits default_total_limits();
// The limit of all stores' bytes with etcd, which has 2 GiB by default, also for overwritten
// values.
inline constexpr std::uint64_t kBytesInEtcd = std::uint64_t{512} << 20;

// Changes the limits that `text` names ("keys=1000,bytes=2GiB"). Numbers may end in k, M, G (powers
// of 1,000) or KiB, MiB, GiB. Returns what is wrong; empty: nothing.
std::string set_limits(std::string_view text, StoreLimits& limits);

class RoundStores {
 public:
  // `of_job` limits bytes and connections of a round's key space, `in_all` those of the plain one.
  // If `only_user` is set, over loopback only programs of that user and of root are served.
  RoundStores(boost::asio::io_context& io, store::StoreServerOptions options, StoreLimits of_job,
              StoreLimits in_all, std::optional<uid_t> only_user = {});

  // Gives new connections an empty key space for this round; older ones keep theirs. `owner`
  // replaces `only_user` for it.
  void begin_round(const std::string& run_id, std::uint64_t round, std::optional<uid_t> owner);
  // Gives new connections the plain key space again.
  void end_rounds();

  // Takes a connection. Out of descriptors, or beyond the limit, it closes it with a log line.
  void adopt(UniqueFd connection);

  // Calls `unused` once, from the I/O context, when no round's key space has a client, or after
  // `limit`.
  void when_unused(std::chrono::milliseconds limit, std::function<void()> unused);

  struct Usage {
    store::StoreServerStats plain;
    std::size_t num_rounds = 0;       // rounds that have a key space
    store::StoreServerStats rounds;   // of these together
    std::uint64_t past_requests = 0;  // of dropped ones
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
  // Each is made at its first client.
  std::unique_ptr<store::StoreServer> plain_;
  std::unique_ptr<store::StoreServer> current_;
  std::optional<std::string> current_name_;                   // nullopt: no round is live
  std::optional<uid_t> owner_;                                // of the live round
  std::vector<std::unique_ptr<store::StoreServer>> retired_;  // until the last client's end
  std::uint64_t past_requests_ = 0;                           // of dropped rounds' stores
  bool timing_ = false;
  boost::asio::steady_timer patience_;
  std::function<void()> unused_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for waits that outlive this
};

}  // namespace ddprun::rendezvous
