// SPDX-License-Identifier: Apache-2.0
// A CUDA stream as a thread with a queue.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ddprun::test {

// Runs tasks one after the other. The destructor waits until the queued tasks have run.
class FakeStream {
 public:
  explicit FakeStream(int device) : device_(device), thread_([this] { run(); }) {}
  ~FakeStream() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  int device() const { return device_; }

  void enqueue(std::function<void()> task) {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty() && !running_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      running_ = false;
      changed_.notify_all();
    }
  }

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // Guarded by mutex_
  bool running_ = false;                     // Guarded by mutex_
  bool closing_ = false;                     // Guarded by mutex_
  std::thread thread_;                       // the last member, because it uses all of the above
};

}  // namespace ddprun::test
