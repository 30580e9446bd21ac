// SPDX-License-Identifier: Apache-2.0
// Writes off the training thread: one task at a time on a thread of its own.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace ddprun {

// Called from one thread. What a task threw, the next start() or wait() throws, once.
class WriterThread {
 public:
  WriterThread() = default;
  // Waits for the task under way: it has somebody's buffers. What it throws is lost.
  ~WriterThread();
  WriterThread(const WriterThread&) = delete;
  WriterThread& operator=(const WriterThread&) = delete;

  // Waits for the task under way, if any, and returns with the new one begun. Throws what the
  // earlier one threw, Error(kResourceExhausted) where there can be no thread; then nothing began.
  void start(std::function<void()> task);

  // When it returns no task is under way. As long as the disk takes: there is no way to take back
  // what the kernel writes.
  void wait();

 private:
  void run();

  // Caller's thread.
  std::thread thread_;  // from the first start() on

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;  // empty: none is under way
  std::exception_ptr error_;
  bool ends_ = false;
};

}  // namespace ddprun
