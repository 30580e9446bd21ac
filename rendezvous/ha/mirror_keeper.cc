// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_keeper.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "rendezvous/ha/mirror_rows.h"

namespace ddprun::ha {

using journal::Batch;
using journal::ClockStamp;

namespace {

constexpr std::chrono::seconds kEndLimit{2};
constexpr char kJobRows[] = "jobs/";

}  // namespace

class MirrorKeeper::Impl {
 public:
  Impl(std::unique_ptr<journal::JournalFile> file, std::function<void(std::function<void()>)> post,
       Events events)
      : post_(std::move(post)), events_(std::move(events)), file_(std::move(file)) {}

  void add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  void set_session(Session session) { session_ = session; }

  void work_until_stopped() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) break;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
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

  void begin(Session session, const std::string& boot) {
    file_->abandon();
    begun_ = session;
    clock_ = ClockStamp();
    clock_.boot = boot;
    reader_ = mirror::TransferReader();
    batch_.clear();
    num_bytes_ = 0;
  }

  void part(Session session, const std::string& frame) {
    if (!is_wanted(session)) return;
    attempt(session, [&] {
      auto step = reader_.take(frame);
      clock_.monotonic_ns = step.monotonic_ns;
      step.transfer == mirror::Transfer::kSnapshot ? take_snapshot(step) : take_batch(step);
      num_bytes_ += frame.size();
      post_([this_events = events_, session, bytes = num_bytes_] {
        this_events.got(session, bytes);
      });
      if (!step.ends) return;
      post_([this_events = events_, session, number = step.number] {
        this_events.acked(session, number);
      });
    });
  }

  void sync(Session session, const SyncedWith& synced) {
    if (!is_wanted(session)) return;
    attempt(session, [&] {
      file_->commit({{kSyncedRow, encode_synced_row(synced)}, {kBeforeRow, std::nullopt}}, clock_);
      before_.emplace();
      post_([this_events = events_, session, synced] { this_events.synced(session, synced); });
    });
  }

  void drop() {
    if (file_) file_->abandon();
    begun_ = 0;
  }

  void hand_over(const std::function<void(MirroredJournal)>& done) {
    drop();
    // Second owner: the call that is posted.
    const auto kept = std::make_shared<MirroredJournal>();
    try {
      kept->content = file_->content();
      const auto row_of = [&](const char* key) {
        const auto found = kept->content.rows.find(key);
        return found == kept->content.rows.end() ? std::string() : found->second;
      };
      kept->synced = decode_synced_row(row_of(kSyncedRow));
      kept->before = before_ ? *before_ : mirror::rows_of(row_of(kBeforeRow));
    } catch (const Error& error) {
      kept->trouble = error.what();
    }
    kept->file = std::move(file_);
    post_([done, kept] { done(std::move(*kept)); });
  }

 private:
  bool is_wanted(Session session) const { return session == session_ && session == begun_; }

  template <typename Call>
  void attempt(Session session, Call call) {
    try {
      call();
    } catch (const Error& error) {
      drop();
      const bool is_own = error.code() != ErrorCode::kProtocol;
      post_([this_events = events_, session, why = std::string(error.what()), is_own] {
        this_events.failed(session, why, is_own);
      });
    }
  }

  void take_snapshot(const mirror::TransferReader::Step& step) {
    write([&] {
      if (step.begins) file_->begin_anew();
      file_->add(step.rows);
      if (step.ends) file_->finish(clock_);
    });
    if (step.ends) before_.emplace();
  }

  void take_batch(mirror::TransferReader::Step& step) {
    for (auto& row : step.rows) batch_.push_back(std::move(row));
    if (!step.ends) return;
    Batch batch = std::exchange(batch_, {});
    Batch before;
    if (!batch.empty()) {
      write([&] {
        before = replaced_by(batch);
        batch.push_back(before_row(before));
        file_->commit(batch, clock_);
      });
    }
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

  std::atomic<Session> session_{0};  // whose parts are wanted

  // Its thread only.
  std::unique_ptr<journal::JournalFile> file_;
  Session begun_ = 0;
  ClockStamp clock_;
  mirror::TransferReader reader_;
  Batch batch_;  // of the transfer under way
  std::uint64_t num_bytes_ = 0;
  std::optional<Batch> before_;  // nullopt: as the row has it

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_stopping_ = false, is_over_ = false;
};

MirrorKeeper::MirrorKeeper(std::unique_ptr<journal::JournalFile> file,
                           std::function<void(std::function<void()>)> post, Events events)
    : impl_(std::make_shared<Impl>(std::move(file), std::move(post), std::move(events))) {
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

void MirrorKeeper::begin(Session session, const std::string& boot) {
  impl_->set_session(session);
  impl_->add([impl = impl_.get(), session, boot] { impl->begin(session, boot); });
}

void MirrorKeeper::part(Session session, std::string frame) {
  impl_->add(
      [impl = impl_.get(), session, frame = std::move(frame)] { impl->part(session, frame); });
}

void MirrorKeeper::sync(Session session, const SyncedWith& synced) {
  impl_->add([impl = impl_.get(), session, synced] { impl->sync(session, synced); });
}

void MirrorKeeper::end() {
  impl_->set_session(0);
  impl_->add([impl = impl_.get()] { impl->drop(); });
}

void MirrorKeeper::stop(std::function<void(MirroredJournal)> done) {
  impl_->set_session(0);
  impl_->add([impl = impl_.get(), done = std::move(done)] { impl->hand_over(done); });
}

}  // namespace ddprun::ha
