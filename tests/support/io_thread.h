// SPDX-License-Identifier: Apache-2.0
// Runs an io context in a thread of its own. Tests make blocking calls against objects of that
// thread.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace ddprun::test {

class IoThread {
 public:
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  // Runs `call` on the io thread and returns its result. To be called between start_thread() and
  // stop_thread().
  template <typename Call>
  auto on_io_thread(Call call) {
    // Shared with the handler, which may still be returning when the result is there.
    const auto task = std::make_shared<std::packaged_task<decltype(call())()>>(std::move(call));
    auto result = task->get_future();
    boost::asio::post(io_, [task] { (*task)(); });
    return result.get();
  }

 protected:
  IoThread() = default;
  ~IoThread() { stop_thread(); }

  void start_thread() {
    thread_ = std::thread([this] { io_.run(); });
  }
  // Returns when the thread has nothing left to do. Its objects must be destroyed before.
  void stop_thread() {
    work_.reset();
    if (thread_.joinable()) thread_.join();
  }
  bool is_running() const { return thread_.joinable(); }

  boost::asio::io_context io_{1};

 private:
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  std::thread thread_;
};

}  // namespace ddprun::test
