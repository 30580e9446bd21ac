// SPDX-License-Identifier: Apache-2.0
// Asio's operations one after another, for a thread that waits for each: with a time limit, and an
// end that any thread can bring about.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/name_lookup.h"

namespace ddprun::ha {

// One thread at a time, but for cancel().
class BlockingIo {
 public:
  BlockingIo();
  ~BlockingIo();
  BlockingIo(const BlockingIo&) = delete;
  BlockingIo& operator=(const BlockingIo&) = delete;

  boost::asio::io_context& io() { return io_; }

  // Runs what is under way until `is_done`. False: `limit` passed, or cancel() was called, first.
  bool run_until(const std::function<bool()>& is_done, Deadline limit);
  // Runs it to its end, which the caller has made sure of (its socket is closed).
  void drain(const std::function<bool()>& is_done);
  // As look_up() (common/name_lookup.h), but for cancel(), which ends it without an address.
  NameLookup look_up(const Endpoint& endpoint, Deadline limit);

  // Any thread. From now on nothing is waited for any more.
  void cancel();
  bool is_cancelled() const { return cancelled_; }

 private:
  // Where a look-up's thread hands its answer in, for as long as there is somebody to take it.
  struct Door {
    std::mutex mutex;
    boost::asio::io_context* io = nullptr;  // guarded by mutex
  };

  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  const std::shared_ptr<Door> door_;  // second owners: look-ups that nobody waits for
  std::atomic<bool> cancelled_{false};
};

}  // namespace ddprun::ha
