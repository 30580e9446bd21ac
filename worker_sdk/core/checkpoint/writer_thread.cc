// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/writer_thread.h"

#include <utility>

#include "common/quiet_thread.h"

namespace ddprun {

WriterThread::~WriterThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WriterThread::start(std::function<void()> task) {
  wait();
  if (!thread_.joinable()) {
    thread_ = start_quiet_thread("ddprun-ckpt", [this] { run(); });
  }
  {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
  }
  changed_.notify_all();
}

void WriterThread::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !task_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void WriterThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return task_ || ends_; });
    if (!task_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      task_();  // nobody else changes it until it is done
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    task_ = nullptr;
    error_ = error;
    changed_.notify_all();
  }
}

}  // namespace ddprun
