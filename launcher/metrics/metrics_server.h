// SPDX-License-Identifier: Apache-2.0
// A tiny HTTP server of two pages, /metrics and /healthz, for everybody who reaches its port. It
// knows only GET. Each connection has one request and a deadline. Many connections cost no more
// than a few. io thread only.
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
    std::size_t max_connections = 16;           // one more closes the oldest
    std::chrono::milliseconds timeout{10'000};  // of a connection, from its begin to its end
    std::chrono::milliseconds max_age{200};     // of a page that is said again
  };
  using Page = std::function<std::string(metrics::Format)>;

  // Serves from now on, as long as the io context runs; `page` is called for a GET /metrics.
  // Listeners are those of listen_on() (common/socket.h).
  MetricsServer(boost::asio::io_context& io, std::vector<UniqueFd> listeners, Page page,
                Options options);
  // Closes all; `page` is not called any more.
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
  // The last text made, by format. One who asks without end gets a text that is this young.
  struct Made {
    std::string text;
    std::optional<Clock::time_point> at;
  };
  std::array<Made, 2> made_;
  // Oldest first; second owners: their operations. Those that have ended are gone from it soon.
  std::list<std::weak_ptr<Session>> sessions_;
  std::shared_ptr<bool> alive_;  // handlers of the io context hold it weakly
};

// ---- --metrics, of ddprun and ddprun-agent ----

// Listens at each address of the endpoint's host (empty: of all interfaces), at one port; 0: a free
// one. Waits a few seconds for a name service. Throws Error that names the flag: the port is taken
// and by whom, the host is not known or no address of this machine.
std::vector<UniqueFd> bind_metrics(const Endpoint& endpoint);

// "http://127.0.0.1:9410/metrics", of what bind_metrics() took.
std::string metrics_url(const std::vector<UniqueFd>& listeners);

// "HOST:PORT", ":PORT" (an empty host: all interfaces) or "off" (nullopt). Returns what is wrong
// with it; empty: nothing.
std::string parse_metrics(std::string_view text, std::optional<Endpoint>& to);

}  // namespace ddprun::launcher
