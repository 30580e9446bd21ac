// SPDX-License-Identifier: Apache-2.0
// Makes items 0, 1, 2, … ahead of their use on threads of its own, and hands them out in order:
// what Loader is built on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ddprun {

// begin() and next() are called from one thread.
class Prefetcher {
 public:
  using Item = std::shared_ptr<void>;  // owned by the caller and, until next(), by this object
  // Called on up to `num_threads` threads at a time.
  using Make = std::function<Item(std::size_t place)>;

  // At most `limit` ≥ 1 items are made or being made beyond those handed out. num_threads 0: next()
  // makes each itself. Throws Error(kInvalidArgument), Error(kResourceExhausted): no more threads.
  Prefetcher(int num_threads, std::size_t limit);
  // Waits for the calls under way.
  ~Prefetcher();

  // Starts to make items 0 … num_items − 1 by `make`; drops what is left of those before. Waits for
  // the calls of the former `make` under way.
  void begin(std::size_t num_items, Make make);

  // Returns the next item; null: all were handed out. If make() threw for an item, this call
  // rethrows it after the items before, and so does each further call.
  Item next();

  // Returns how long next() has made its caller wait, since construction.
  std::chrono::nanoseconds waited() const { return waited_; }

 private:
  struct Made {
    Item item;
    std::exception_ptr error;
  };
  static Made make_one(const Make& make, std::size_t place);
  Item take();
  void work();
  void end();
  bool has_work() const { return begun_ < num_items_ && begun_ < taken_ + limit_; }

  // Constant after construction.
  const std::size_t limit_;
  std::vector<std::thread> threads_;

  // Used on the caller's thread.
  std::chrono::nanoseconds waited_{0};

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable work_changed_, made_changed_;
  Make make_;  // changed only while num_under_way_ is 0
  std::size_t num_items_ = 0, begun_ = 0, taken_ = 0;
  std::size_t num_under_way_ = 0;
  std::map<std::size_t, Made> made_;  // by place; not taken yet
  bool ends_ = false;
};

}  // namespace ddprun
