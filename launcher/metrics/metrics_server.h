// SPDX-License-Identifier: Apache-2.0
// A small HTTP server of two pages, /metrics and /healthz, for everybody who reaches its port. It
// only knows GET. A connection has one request and a deadline. The number of connections is
// bounded. io thread only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/metrics_text.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {

class MetricsServer {
 public:
  struct Options {
    std::size_t max_connections = 16;           // a further connection closes the oldest
    std::chrono::milliseconds timeout{10'000};  // a connection's longest life
    std::chrono::milliseconds max_age{200};     // a page younger than this is sent again
  };
  using Page = std::function<std::string(metrics::Format)>;

  // Serves while the io context runs, and calls `page` for a GET /metrics. The listeners are from
  // listen_on() (common/socket.h).
  MetricsServer(boost::asio::io_context& io, std::vector<UniqueFd> listeners, Page page,
                Options options);
  // Closes all connections. `page` isn't called any more.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  class Session;
  using Descriptor = boost::asio::posix::stream_descriptor;
  struct Listener {
    Descriptor socket;
    boost::asio::steady_timer pause;
  };

  void accept_from(Listener& listener);
  bool accept_some(Listener& listener);
  void take(UniqueFd connection);
  const std::string& page(metrics::Format format);

  // Constant after construction.
  boost::asio::io_context& io_;
  const Page page_;
  const Options options_;

  std::list<Listener> listeners_;
  // The last text of each format. It is sent again while it is young, so that frequent requests
  // cost little.
  struct Made {
    std::string text;
    std::optional<Clock::time_point> at;
  };
  std::array<Made, 2> made_;
  // Oldest first. Their operations own them, too; sessions that have ended are removed soon.
  std::list<std::weak_ptr<Session>> sessions_;
  std::shared_ptr<bool> alive_;  // the io context's handlers hold it weakly
};

// ---- --metrics, of ddprun and ddprun-agent ----

// Listens at each address of the endpoint's host (empty: all interfaces), at one port; 0: a free
// one. Waits a few seconds for a name service. Throws Error, which names the flag, if the port is
// taken (by whom), or the host is unknown or not this machine's.
std::vector<UniqueFd> bind_metrics(const Endpoint& endpoint);

// Returns "http://127.0.0.1:9410/metrics", for listeners from bind_metrics().
std::string metrics_url(const std::vector<UniqueFd>& listeners);

// Parses "HOST:PORT", ":PORT" (an empty host: all interfaces) or "off" (nullopt). Returns the
// problem; empty: none.
std::string parse_metrics(std::string_view text, std::optional<Endpoint>& to);

}  // namespace ddprun::launcher
