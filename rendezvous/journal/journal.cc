// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/journal/journal.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"

namespace ddprun::journal {

class Journal::Shared {
 public:
  Shared(std::unique_ptr<BatchWriter> writer, std::function<void(std::function<void()>)> post,
         JournalOptions options)
      : writer_(std::move(writer)),
        name_(writer_->name()),
        post_(std::move(post)),
        options_(options) {
    if (const std::string what = writer_->trouble(); !what.empty()) {
      fail(what);
      next_try_ = Clock::now() + retry_;
    }
  }

  void commit(Batch batch, std::function<void()> done);
  std::optional<JournalTrouble> trouble() const;
  void write_until_stopped();
  void watch_until_stopped();
  void stop(std::thread writer, std::thread watcher);

 private:
  using Rows = std::map<std::string, std::optional<std::string>>;
  using Lock = std::unique_lock<std::mutex>;
  struct Wait {
    std::function<void()> done;
    Clock::time_point since;
  };

  void write(Lock& lock);
  void wrote(Clock::duration time);
  void could_not_write(Rows rows, const std::string& what);
  void fail(const std::string& what);
  void release(std::size_t num_waits);
  void say(LogLevel level, std::string text);

  const std::unique_ptr<BatchWriter> writer_;
  const std::string name_;
  const std::function<void(std::function<void()>)> post_;
  const JournalOptions options_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable wakes_;
  Rows behind_;             // not on disk, and not being written
  std::deque<Wait> waits_;  // in order; empty while trouble_ is set
  bool stopping_ = false, stopped_ = false;
  std::optional<JournalTrouble> trouble_;
  std::chrono::milliseconds retry_{0};
  Clock::time_point next_try_{}, well_since_{};
};

void Journal::Shared::commit(Batch batch, std::function<void()> done) {
  const std::lock_guard lock(mutex_);
  for (RowChange& row : batch) behind_[row.key] = std::move(row.content);
  waits_.push_back({std::move(done), Clock::now()});
  if (trouble_) release(waits_.size());
  wakes_.notify_all();
}

std::optional<JournalTrouble> Journal::Shared::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void Journal::Shared::write_until_stopped() {
  Lock lock(mutex_);
  while (true) {
    const auto due = [this] {
      if (stopping_) return true;
      if (trouble_) return Clock::now() >= next_try_;
      return !behind_.empty() || !waits_.empty();
    };
    if (trouble_) {
      wakes_.wait_until(lock, next_try_, due);
      if (!due()) continue;
    } else {
      wakes_.wait(lock, due);
    }
    const bool last = stopping_;
    write(lock);
    if (last) break;
  }
  stopped_ = true;
  wakes_.notify_all();
}

void Journal::Shared::write(Lock& lock) {
  Rows rows = std::exchange(behind_, {});
  const std::size_t num_waits = waits_.size();
  const bool was_failing = trouble_.has_value();
  if (rows.empty() && !was_failing) return release(num_waits);
  Batch batch;
  for (const auto& [key, content] : rows) batch.push_back({key, content});
  const Clock::time_point begun = Clock::now();
  lock.unlock();
  std::string what;
  bool done = false;
  try {
    writer_->commit(batch);
    done = true;
  } catch (const std::exception& error) {
    what = error.what();
  }
  lock.lock();
  if (!done) return could_not_write(std::move(rows), what);
  if (!trouble_) return release(num_waits);  // else nobody waits: the watcher has released them
  wrote(Clock::now() - begun);
}

// While it was in trouble. Who commits from now on waits again, also for what is behind.
void Journal::Shared::wrote(Clock::duration time) {
  if (time >= options_.commit_limit) {  // it hung, and may again
    next_try_ = Clock::now() + retry_;
    return;
  }
  trouble_.reset();
  well_since_ = Clock::now();
  say(LogLevel::kInfo, concat(name_, " is written again, and up to date"));
}

void Journal::Shared::could_not_write(Rows rows, const std::string& what) {
  behind_.merge(rows);  // what is newer stays
  fail(what);
  next_try_ = Clock::now() + retry_;
}

// Each try is later than the one before, also where one that went well came between them.
void Journal::Shared::fail(const std::string& what) {
  const Clock::time_point now = Clock::now();
  if (!trouble_ && now - well_since_ > options_.last_retry) retry_ = {};
  retry_ = std::clamp(retry_ * 2, options_.first_retry, options_.last_retry);
  if (trouble_) return;
  trouble_ = JournalTrouble{what, now};
  say(LogLevel::kError, concat(what,
                               "; jobs go on in memory: what is decided from now on is lost if "
                               "this ddprund ends before it can write there again"));
  release(waits_.size());
}

void Journal::Shared::release(std::size_t num_waits) {
  for (; num_waits > 0; --num_waits) {
    if (!stopping_) post_(std::move(waits_.front().done));
    waits_.pop_front();
  }
}

void Journal::Shared::watch_until_stopped() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (waits_.empty()) {
      wakes_.wait(lock);
      continue;
    }
    const Clock::time_point limit = waits_.front().since + options_.commit_limit;
    if (Clock::now() < limit) {
      wakes_.wait_until(lock, limit);
      continue;
    }
    fail(concat("can't write ", name_, ": the disk has not answered for ",
                options_.commit_limit.count(), " ms"));
    next_try_ = Clock::now();  // the write that hangs is the try
  }
}

void Journal::Shared::say(LogLevel level, std::string text) {
  if (stopping_) return;
  post_([level, text = std::move(text)] { log_message(level, text); });
}

void Journal::Shared::stop(std::thread writer, std::thread watcher) {
  Lock lock(mutex_);
  stopping_ = true;
  wakes_.notify_all();
  const bool ended = wakes_.wait_for(lock, options_.commit_limit, [this] { return stopped_; });
  lock.unlock();
  watcher.join();
  if (ended) {
    writer.join();
  } else {
    log_error("can't write ", name_, ": the disk hangs; what it has not taken is lost");
    writer.detach();
  }
}

Journal::Journal(std::unique_ptr<BatchWriter> writer,
                 std::function<void(std::function<void()>)> post, JournalOptions options)
    : shared_(std::make_shared<Shared>(std::move(writer), std::move(post), options)) {
  const auto shared = shared_;
  writer_thread_ = start_quiet_thread("journal", [shared] { shared->write_until_stopped(); });
  watcher_thread_ =
      start_quiet_thread("journal-watch", [shared] { shared->watch_until_stopped(); });
}

Journal::~Journal() { shared_->stop(std::move(writer_thread_), std::move(watcher_thread_)); }

void Journal::commit(Batch batch, std::function<void()> done) {
  shared_->commit(std::move(batch), std::move(done));
}

std::optional<JournalTrouble> Journal::trouble() const { return shared_->trouble(); }

}  // namespace ddprun::journal
