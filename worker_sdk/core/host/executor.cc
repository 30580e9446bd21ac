// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/executor.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "common/error.h"
#include "common/quiet_thread.h"

namespace ddprun::host {
namespace {

struct QueuedWork;

}  // namespace

struct OrderedExecutor::Core {
  std::mutex mutex;
  std::condition_variable changed;

  // Guarded by mutex.
  std::deque<std::shared_ptr<QueuedWork>> queue;
  bool busy = false;  // somebody runs an operation
  bool stopping = false;

  // Constructor, submit() and destructor only.
  std::string thread_name;
  std::thread thread;

  void run_front(std::unique_lock<std::mutex>& lock);
  void progress();
};

namespace {

struct QueuedWork final : Work {
  std::shared_ptr<OrderedExecutor::Core> core;
  // Guarded by core->mutex.
  OrderedExecutor::Operation operation;
  bool done = false;
  std::exception_ptr error;

  bool is_completed() override {
    const std::lock_guard lock(core->mutex);
    return done;
  }

  // Runs what is at the front itself rather than wait for the progress thread to be scheduled.
  void wait() override {
    std::unique_lock lock(core->mutex);
    while (!done) {
      if (!core->busy && !core->queue.empty()) {
        core->run_front(lock);
      } else {
        core->changed.wait(lock);
      }
    }
    if (error) std::rethrow_exception(error);
  }
};

struct DoneWork final : Work {
  bool is_completed() override { return true; }
  void wait() override {}
};

}  // namespace

void OrderedExecutor::Core::run_front(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<QueuedWork> work = queue.front();
  queue.pop_front();
  busy = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    work->operation();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  busy = false;
  work->operation = nullptr;
  work->error = error;
  work->done = true;
  changed.notify_all();
}

void OrderedExecutor::Core::progress() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    if (!busy && !queue.empty()) {
      run_front(lock);
    } else {
      changed.wait(lock);
    }
  }
}

OrderedExecutor::OrderedExecutor(std::string thread_name) : core_(std::make_shared<Core>()) {
  core_->thread_name = std::move(thread_name);
}

OrderedExecutor::~OrderedExecutor() {
  {
    const std::lock_guard lock(core_->mutex);
    core_->stopping = true;
    for (const auto& work : core_->queue) {
      work->operation = nullptr;
      work->done = true;
      work->error = std::make_exception_ptr(
          Error(ErrorCode::kAborted, "the communicator was destroyed before this operation began"));
    }
    core_->queue.clear();
    core_->changed.notify_all();
  }
  if (core_->thread.joinable()) core_->thread.join();
}

void OrderedExecutor::run(const Operation& operation) {
  std::unique_lock lock(core_->mutex);
  while (core_->busy || !core_->queue.empty()) {
    if (!core_->busy) {
      core_->run_front(lock);
    } else {
      core_->changed.wait(lock);
    }
  }
  core_->busy = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    operation();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  core_->busy = false;
  lock.unlock();
  core_->changed.notify_all();
  if (error) std::rethrow_exception(error);
}

WorkPtr OrderedExecutor::submit(Operation operation) {
  auto work = std::make_shared<QueuedWork>();
  work->core = core_;
  work->operation = std::move(operation);
  if (!core_->thread.joinable()) {
    core_->thread =
        start_quiet_thread(core_->thread_name.c_str(), [core = core_.get()] { core->progress(); });
  }
  const std::lock_guard lock(core_->mutex);
  core_->queue.push_back(work);
  core_->changed.notify_all();
  return work;
}

WorkPtr completed_work() {
  static const WorkPtr done = std::make_shared<DoneWork>();
  return done;
}

}  // namespace ddprun::host
