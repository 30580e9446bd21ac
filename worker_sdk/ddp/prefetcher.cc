// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/prefetcher.h"

#include <utility>

#include "common/quiet_thread.h"
#include "common/throw_error.h"

namespace ddprun {

Prefetcher::Prefetcher(int num_threads, std::size_t limit) : limit_(limit) {
  if (num_threads < 0 || limit < 1) {
    throw_invalid(
        "a loader needs a number of threads that isn't negative, and at least one batch "
        "ahead");
  }
  try {
    for (int i = 0; i < num_threads; ++i) {
      threads_.push_back(start_quiet_thread("ddprun-load", [this] { work(); }));
    }
  } catch (...) {
    end();
    throw;
  }
}

Prefetcher::~Prefetcher() { end(); }

void Prefetcher::end() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  work_changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Prefetcher::begin(std::size_t num_items, Make make) {
  {
    std::unique_lock lock(mutex_);
    begun_ = num_items_ = 0;  // no thread begins another of the former items
    made_changed_.wait(lock, [this] { return num_under_way_ == 0; });
    made_.clear();
    make_ = std::move(make);
    num_items_ = num_items;
    taken_ = 0;
  }
  work_changed_.notify_all();
}

Prefetcher::Item Prefetcher::next() {
  const auto start = std::chrono::steady_clock::now();
  struct Count {
    ~Count() { waited += std::chrono::steady_clock::now() - start; }
    std::chrono::nanoseconds& waited;
    std::chrono::steady_clock::time_point start;
  } const count{.waited = waited_, .start = start};
  return take();
}

Prefetcher::Item Prefetcher::take() {
  std::unique_lock lock(mutex_);
  if (taken_ == num_items_) return nullptr;
  if (threads_.empty() && !made_.contains(taken_)) {
    made_[taken_] = make_one(make_, taken_);
  }
  made_changed_.wait(lock, [this] { return made_.contains(taken_); });
  const auto first = made_.find(taken_);
  if (first->second.error) std::rethrow_exception(first->second.error);
  Item item = std::move(first->second.item);
  made_.erase(first);
  ++taken_;
  lock.unlock();
  work_changed_.notify_one();
  return item;
}

Prefetcher::Made Prefetcher::make_one(const Make& make, std::size_t place) {
  Made made;
  try {
    made.item = make(place);
  } catch (...) {
    made.error = std::current_exception();
  }
  return made;
}

void Prefetcher::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_changed_.wait(lock, [this] { return ends_ || has_work(); });
    if (ends_) return;
    const std::size_t place = begun_++;
    ++num_under_way_;
    lock.unlock();
    Made made = make_one(make_, place);
    lock.lock();
    --num_under_way_;
    made_[place] = std::move(made);
    made_changed_.notify_all();
  }
}

}  // namespace ddprun
