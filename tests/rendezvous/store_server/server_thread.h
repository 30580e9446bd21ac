// SPDX-License-Identifier: Apache-2.0
// A StoreServer on 127.0.0.1 in a thread of its own, and the log lines of the process.
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
#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/store_server/store_server.h"

namespace ddprun::store::testing {

// Collects what is logged while it lives. One at a time.
class LogLines {
 public:
  LogLines() {
    const std::lock_guard lock(mutex());
    lines().clear();
    set_log_sink([](LogLevel, std::string_view message) {
      const std::lock_guard inner(mutex());
      lines().emplace_back(message);
      changed().notify_all();
    });
  }
  ~LogLines() {
    set_log_sink([](LogLevel, std::string_view) {});
  }

  // The first line that contains `text`; empty after 10 s without one.
  std::string await(const std::string& text) const {
    std::unique_lock lock(mutex());
    std::string found;
    changed().wait_for(lock, std::chrono::seconds(10), [&] {
      for (const std::string& line : lines()) {
        if (line.find(text) != std::string::npos) found = line;
      }
      return !found.empty();
    });
    return found;
  }

  std::vector<std::string> all() const {
    const std::lock_guard lock(mutex());
    return lines();
  }

 private:
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static std::condition_variable& changed() {
    static std::condition_variable instance;
    return instance;
  }
  static std::vector<std::string>& lines() {
    static std::vector<std::string> instance;
    return instance;
  }
};

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
