// SPDX-License-Identifier: Apache-2.0
// Store proxies on 127.0.0.1 and the store behind them, in one thread. Their messages go through
// queues that can be cut, as connections are.
#pragma once

#include <boost/asio/post.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/socket.h"
#include "rendezvous/store/proxied_store.h"
#include "rendezvous/store_server/store_proxy.h"
#include "tests/support/io_thread.h"

namespace ddprun::store::testing {

class ProxiedServer : public test::IoThread {
 public:
  struct Options {
    int num_proxies = 1;
    int cut_every = 0;  // cut after so many messages of each proxy; 0: only cut() cuts
    StoreServerOptions server = {};
  };

  explicit ProxiedServer(Options options) : options_(std::move(options)) {
    for (int i = 0; i < options_.num_proxies; ++i) {
      UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
      Link& link = *links_.emplace_back(std::make_unique<Link>());
      link.endpoint = {"127.0.0.1", local_address(listener.get()).port()};
      link.proxy = std::make_unique<StoreProxy>(
          io_, options_.server, [this, i](std::string message) { to_store(i, message); });
      link.proxy->serve(1, std::move(listener));
      link.proxy->linked();
    }
    start_thread();
  }
  ProxiedServer() : ProxiedServer(Options{}) {}
  ~ProxiedServer() {
    on_io_thread([this] { links_.clear(); });
    stop_thread();
  }

  Endpoint endpoint(std::size_t proxy = 0) const { return links_[proxy]->endpoint; }

  // Ends a proxy's connection, which stays away.
  void cut(std::size_t proxy = 0) {
    on_io_thread([&] { cut_here(*links_[proxy]); });
  }
  void mend(std::size_t proxy = 0) {
    on_io_thread([&] { mend_here(proxy); });
  }

  std::size_t num_keys() {
    return on_io_thread([this] { return store_.num_keys(); });
  }
  // The number of clients' requests that a proxy has taken.
  std::uint64_t num_requests(std::size_t proxy = 0) {
    return on_io_thread([&] { return links_[proxy]->proxy->stats().num_requests; });
  }
  std::size_t num_waits() {
    return on_io_thread([this] { return store_.num_waits(); });
  }
  int num_cuts() {
    return on_io_thread([this] { return num_cuts_; });
  }

 private:
  struct Link {
    Endpoint endpoint;
    std::unique_ptr<StoreProxy> proxy;
    // Messages of an earlier connection that are on their way are lost.
    std::uint64_t connection = 1;
    int num_messages = 0;
    bool is_up = true;
  };

  void carry(std::size_t proxy, std::function<void()> arrive) {
    Link& link = *links_[proxy];
    if (!link.is_up) return;
    boost::asio::post(io_, [this, proxy, connection = link.connection, arrive] {
      if (proxy >= links_.size() || links_[proxy]->connection != connection) return;
      arrive();
      if (options_.cut_every == 0 || ++links_[proxy]->num_messages % options_.cut_every != 0)
        return;
      cut_here(*links_[proxy]);
      mend_here(proxy);
    });
  }

  void to_store(int proxy, const std::string& message) {
    const auto number = static_cast<std::size_t>(proxy);
    carry(number, [this, number, message] {
      store_.receive(number, decode_frame(message));
      while (store_.is_ready(number)) store_.run(number, 7, {});
      answer();
    });
  }

  void answer() {
    const auto marks = store_.take_marks();
    store_.release(marks);
    for (const auto& [node, said, received] : marks) {
      const auto proxy = static_cast<std::size_t>(node);
      if (!links_[proxy]->is_up) continue;
      while (const auto message = store_.next_frame(proxy)) {
        carry(proxy, [this, proxy, message] { links_[proxy]->proxy->received(*message); });
      }
    }
  }

  void cut_here(Link& link) {
    ++link.connection;
    ++num_cuts_;
    link.is_up = false;
    link.proxy->unlinked();
  }

  void mend_here(std::size_t proxy) {
    links_[proxy]->is_up = true;
    store_.reconnected(proxy);
    links_[proxy]->proxy->linked();
    answer();
  }

  const Options options_;
  const RequestLimits limits_;
  ProxiedStore store_{1, limits_};
  std::vector<std::unique_ptr<Link>> links_;
  int num_cuts_ = 0;
};

}  // namespace ddprun::store::testing
