// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_keeper.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "rendezvous/ha/mirror_transfer.h"

namespace ddprun::ha {

using journal::Batch;
using journal::ClockStamp;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kEndLimit{2'000};
constexpr char kJobRows[] = "jobs/";

}  // namespace

class MirrorKeeper::Impl {
 public:
  Impl(std::unique_ptr<journal::JournalFile> file, std::function<void(std::function<void()>)> post,
       Events events, milliseconds first_retry, milliseconds last_retry)
      : post_(std::move(post)),
        events_(std::move(events)),
        first_retry_(first_retry),
        last_retry_(last_retry),
        file_(std::move(file)) {}

  void add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  void set_session(Session session) { session_ = session; }

  void work_until_stopped() {
    std::unique_lock lock(mutex_);
    while (true) {
      const auto is_due = [this] { return is_stopping_ || !tasks_.empty(); };
      if (left_) {
        changed_.wait_until(lock, next_try_, is_due);
      } else {
        changed_.wait(lock, is_due);
      }
      if (is_stopping_ && tasks_.empty()) break;
      if (tasks_.empty()) {
        lock.unlock();
        become_copy();
      } else {
        const auto task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        task();
      }
      lock.lock();
    }
    is_over_ = true;
    changed_.notify_all();
  }

  // Whether its thread has ended.
  bool stop_and_wait() {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
    return changed_.wait_for(lock, kEndLimit, [this] { return is_over_; });
  }

  // ---- its thread ----

  void begin(Session session, const Leader& leader) {
    drop();
    begun_ = session;
    leader_ = leader;
    clock_ = ClockStamp();
    clock_.boot = leader.boot;
    reader_ = mirror::TransferReader();
    batch_.clear();
    num_bytes_ = 0;
    has_snapshot_ = is_synced_ = false;
  }

  void part(Session session, const std::string& frame) {
    attempt(session, [&] {
      auto step = reader_.take(frame);
      clock_.monotonic_ns = step.monotonic_ns;
      step.transfer == mirror::Transfer::kSnapshot ? take_snapshot(step) : take_batch(step);
      num_bytes_ += frame.size();
      tell(events_.got, session, num_bytes_);
      if (step.ends) tell(events_.acked, session, step.number);
    });
  }

  // What the last batch replaced stays: it may have been sent just before this.
  void sync(Session session, const SyncedWith& synced) {
    attempt(session, [&] {
      if (!has_snapshot_) {
        throw Error(ErrorCode::kProtocol, "it says in_sync before its snapshot was acknowledged");
      }
      write([&] { file_->commit(copy_synced(synced), clock_); });
      is_synced_ = true;
      tell(events_.synced, session, synced);
    });
  }

  void ask_when_done(Session session) {
    if (is_wanted(session)) tell(events_.caught_up, session);
  }

  void drop() {
    if (file_) file_->abandon();
    is_in_snapshot_ = false;
    begun_ = 0;
  }

  void leave(const std::function<void(bool is_kept)>& done) {
    drop();
    if (is_synced_) left_ = leader_.name;
    become_copy();
    post_([done, is_kept = !left_] { done(is_kept); });
  }

  void hand_over(const std::function<void(MirroredJournal)>& done) {
    drop();
    become_copy();
    // Second owner: the call that is posted.
    const auto kept = std::make_shared<MirroredJournal>();
    try {
      kept->content = file_->content();
      // Taken up again by its owner, as a damaged one.
      if (!kept->content.losses.empty()) {
        throw Error(ErrorCode::kSystem, kept->content.losses.front());
      }
      journal::Rows& rows = kept->content.rows;
      const auto row_of = [&](const char* key) {
        const auto found = rows.find(key);
        return found == rows.end() ? std::string() : found->second;
      };
      kept->before = before_ ? *before_ : mirror::rows_of(row_of(kBeforeRow));
      if (left_) journal::apply_batch(copy_begun(*left_), rows);
    } catch (const std::exception& error) {
      kept->trouble = error.what();
    }
    kept->file = std::move(file_);
    left_.reset();
    post_([done, kept] { done(std::move(*kept)); });
  }

 private:
  bool is_wanted(Session session) const { return session == session_ && session == begun_; }

  template <typename Event, typename... Args>
  void tell(const Event& event, Session session, const Args&... args) {
    post_([event, session, args...] { event(session, args...); });
  }

  template <typename Call>
  void attempt(Session session, Call call) {
    if (!is_wanted(session)) return;
    Failure failure;
    try {
      return call();
    } catch (const Error& error) {
      failure.why = error.what();
      failure.is_own = error.code() != ErrorCode::kProtocol;
    } catch (const std::exception& error) {
      failure.why = error.what();
      failure.is_own = true;
    }
    drop();
    if (failure.is_own && is_synced_) {
      left_ = leader_.name;
      retry_ = {};
      become_copy();
      failure.has_left = !left_;
    }
    tell(events_.failed, session, failure);
  }

  // Rows that lack what the leader may tell others are not those of a standby that is in sync.
  void become_copy() {
    if (!left_ || !file_) return;
    if (is_in_snapshot_) {  // which ends as a copy, or is given up
      next_try_ = Clock::now() + last_retry_;
      return;
    }
    try {
      file_->commit(copy_begun(*left_));
      left_.reset();
      is_synced_ = false;
    } catch (const std::exception&) {  // that it can't be written was said
      retry_ = std::clamp(retry_ * 2, first_retry_, last_retry_);
      next_try_ = Clock::now() + retry_;
    }
  }

  void take_snapshot(const mirror::TransferReader::Step& step) {
    write([&] {
      if (step.begins) {
        given_up_ = file_->read(kGivenUpRow);
        is_in_snapshot_ = true;
        file_->begin_anew();
      }
      file_->add(step.rows);
      if (!step.ends) return;
      file_->add(copy_begun(leader_.name));
      if (given_up_) file_->add({{kGivenUpRow, given_up_}});
      file_->finish(clock_);
    });
    if (!step.ends) return;
    is_in_snapshot_ = false;
    before_.emplace();
    has_before_row_ = false;
    has_snapshot_ = true;
    left_.reset();
  }

  void take_batch(mirror::TransferReader::Step& step) {
    for (auto& row : step.rows) batch_.push_back(std::move(row));
    if (!step.ends) return;
    Batch batch = std::exchange(batch_, {});
    Batch before;
    write([&] {
      before = replaced_by(batch);
      if (!before.empty() || has_before_row_) batch.push_back(before_row(before));
      if (!batch.empty()) file_->commit(batch, clock_);
    });
    has_before_row_ = !before.empty();
    before_ = std::move(before);
  }

  // What is damaged on this side's disk is no fault of the leader's.
  template <typename Call>
  static void write(Call call) {
    try {
      call();
    } catch (const Error& error) {
      throw Error(ErrorCode::kSystem, error.what());
    }
  }

  Batch replaced_by(const Batch& batch) {
    Batch before;
    for (const auto& row : batch) {
      if (row.key.starts_with(kJobRows)) before.push_back({row.key, file_->read(row.key)});
    }
    return before;
  }

  static journal::RowChange before_row(const Batch& before) {
    if (before.empty()) return {kBeforeRow, std::nullopt};
    std::string rows;
    for (const auto& row : before) mirror::add_row(row, rows);
    return {kBeforeRow, std::move(rows)};
  }

  // Constant after construction.
  const std::function<void(std::function<void()>)> post_;
  const Events events_;
  const milliseconds first_retry_, last_retry_;

  std::atomic<Session> session_{0};  // whose parts are wanted

  // Its thread only.
  std::unique_ptr<journal::JournalFile> file_;
  Session begun_ = 0;
  Leader leader_;
  ClockStamp clock_;
  mirror::TransferReader reader_;
  Batch batch_;  // of the transfer under way
  std::uint64_t num_bytes_ = 0;
  bool has_snapshot_ = false, is_synced_ = false;  // of the session, and kept
  bool is_in_snapshot_ = false;                    // a transaction of the file's is open
  bool has_before_row_ = false;
  std::optional<std::string> given_up_;  // the row, as the snapshot found it
  std::optional<Batch> before_;          // nullopt: as the row has it
  // Set: the rows still say that they are in sync with that leader, and are to be a copy's.
  std::optional<std::string> left_;
  milliseconds retry_{0};
  Clock::time_point next_try_{};

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_stopping_ = false, is_over_ = false;
};

MirrorKeeper::MirrorKeeper(std::unique_ptr<journal::JournalFile> file,
                           std::function<void(std::function<void()>)> post, Events events,
                           milliseconds first_retry, milliseconds last_retry)
    : impl_(std::make_shared<Impl>(std::move(file), std::move(post), std::move(events), first_retry,
                                   last_retry)) {
  thread_ = start_quiet_thread("mirror", [impl = impl_] { impl->work_until_stopped(); });
}

MirrorKeeper::~MirrorKeeper() {
  end();
  if (impl_->stop_and_wait()) {
    thread_.join();
  } else {
    log_error("the standby's journal can't be written: the disk hangs");
    thread_.detach();
  }
}

void MirrorKeeper::begin(Session session, const Leader& leader) {
  impl_->set_session(session);
  impl_->add([impl = impl_.get(), session, leader] { impl->begin(session, leader); });
}

void MirrorKeeper::part(Session session, std::string frame) {
  impl_->add(
      [impl = impl_.get(), session, frame = std::move(frame)] { impl->part(session, frame); });
}

void MirrorKeeper::sync(Session session, const SyncedWith& synced) {
  impl_->add([impl = impl_.get(), session, synced] { impl->sync(session, synced); });
}

void MirrorKeeper::ask_when_done(Session session) {
  impl_->add([impl = impl_.get(), session] { impl->ask_when_done(session); });
}

void MirrorKeeper::end() {
  impl_->set_session(0);
  impl_->add([impl = impl_.get()] { impl->drop(); });
}

void MirrorKeeper::leave(std::function<void(bool is_kept)> done) {
  impl_->set_session(0);
  impl_->add([impl = impl_.get(), done = std::move(done)] { impl->leave(done); });
}

void MirrorKeeper::stop(std::function<void(MirroredJournal)> done) {
  impl_->set_session(0);
  impl_->add([impl = impl_.get(), done = std::move(done)] { impl->hand_over(done); });
}

}  // namespace ddprun::ha
