// SPDX-License-Identifier: Apache-2.0
// A StoreServer on 127.0.0.1 in a thread of its own.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/socket.h"
#include "rendezvous/store_server/store_server.h"
#include "tests/support/log_lines.h"

namespace ddprun::store::testing {

using test::LogLines;

class ServerThread {
 public:
  explicit ServerThread(StoreServerOptions options = {}) {
    UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
    endpoint_ = {"127.0.0.1", local_address(listener.get()).port()};
    server_.emplace(io_, std::move(options));
    server_->listen(std::move(listener));
    thread_ = std::thread([this] { io_.run(); });
  }
  ~ServerThread() { kill(); }

  const Endpoint& endpoint() const { return endpoint_; }

  // Runs `call` on the io thread and returns its result.
  template <typename Call>
  auto on_io_thread(Call call) {
    // Second owner: the handler, which may still be returning when the result is there.
    const auto task = std::make_shared<std::packaged_task<decltype(call())()>>(std::move(call));
    auto result = task->get_future();
    boost::asio::post(io_, [task] { (*task)(); });
    return result.get();
  }

  // Destroys the server, its connections with it.
  void kill() {
    if (!thread_.joinable()) return;
    on_io_thread([this] { server_.reset(); });
    work_.reset();
    thread_.join();
  }

  StoreServerStats stats() {
    return on_io_thread([this] { return server_->stats(); });
  }
  StoreServer& server() { return *server_; }

 private:
  Endpoint endpoint_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  std::optional<StoreServer> server_;
  std::thread thread_;
};

}  // namespace ddprun::store::testing
