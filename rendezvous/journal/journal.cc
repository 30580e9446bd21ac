// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/journal/journal.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"

namespace ddprun::journal {
namespace {
constexpr char kInMemory[] =
    "; jobs go on in memory: what is decided from now on is lost if this ddprund ends before it "
    "can write there again";
constexpr char kUpToDate[] = " is written again, and up to date";
constexpr std::chrono::milliseconds kTurn{2};
constexpr std::chrono::milliseconds kCancelLimit{500};  // until a writer notices cancel()
constexpr std::size_t kLargeRows = 100, kLargeBytes = std::size_t{1} << 20;

using Changes = std::map<std::string, std::optional<std::string>>;

bool are_large(const Changes& rows) {
  std::size_t bytes = 0;
  for (const auto& [key, content] : rows) bytes += content ? content->size() : 0;
  return rows.size() > kLargeRows || bytes > kLargeBytes;
}

void move_to(Batch& batch, Changes rows) {
  batch.reserve(batch.size() + rows.size());
  while (!rows.empty()) {
    auto row = rows.extract(rows.begin());
    batch.push_back({std::move(row.key()), std::move(row.mapped())});
  }
}

}  // namespace

class Journal::Shared : public std::enable_shared_from_this<Shared> {
  using Lock = std::unique_lock<std::mutex>;
  struct Wait {
    std::uint64_t number = 0;
    std::function<void()> done;
    Clock::time_point since;
  };
  // The rows of one RowKind, and who waits for them.
  struct Lane {
    Changes behind;          // not on disk, and not being written
    std::deque<Wait> waits;  // in order; empty while trouble_ is set, unless it is shared

    void put_back(std::span<RowChange> rows) {  // newer contents stay
      for (RowChange& row : rows) behind.try_emplace(std::move(row.key), std::move(row.content));
    }
  };

 public:
  Shared(std::unique_ptr<BatchWriter> writer, std::function<void(std::function<void()>)> post,
         JournalOptions options)
      : writer_(std::move(writer)),
        name_(writer_->name()),
        post_(std::move(post)),
        options_(std::move(options)) {
    if (const std::string what = writer_->trouble(); !what.empty()) {
      fail(what);
      next_try_ = Clock::now() + retry_;
    }
  }

  bool is_shared() const { return options_.is_shared; }

  void commit(Batch batch, std::function<void()> done, RowKind kind) {
    const std::lock_guard lock(mutex_);
    if (deposed_) return;
    Lane& lane = kind == RowKind::kDecision ? decisions_ : stores_;
    for (RowChange& row : batch) {
      lane.behind.insert_or_assign(std::move(row.key), std::move(row.content));
    }
    lane.waits.push_back({++num_commits_, std::move(done), Clock::now()});
    if (trouble_ && !options_.is_shared) release(num_commits_);
    writer_wakes_.notify_one();
    if (std::exchange(watcher_sleeps_, false)) watcher_wakes_.notify_one();
  }

  std::optional<JournalTrouble> trouble() const {
    const std::lock_guard lock(mutex_);
    return trouble_;
  }

  void write_until_stopped() {
    Lock lock(mutex_);
    while (true) {
      const auto due = [this] {
        if (stopping_) return true;
        if (deposed_) return false;
        if (trouble_) return Clock::now() >= next_try_;
        return has_rows() || first_wait() != nullptr;
      };
      if (trouble_ && !deposed_) {
        writer_wakes_.wait_until(lock, next_try_, due);
        if (!due()) continue;
      } else {
        writer_wakes_.wait(lock, due);
      }
      const bool last = stopping_;
      if (last && options_.is_shared) break;
      write(lock);
      if (last) break;
    }
    stopped_ = true;
    stopped_wakes_.notify_all();
  }

  void write(Lock& lock) {
    // Decisions aren't part of a large batch: they are kept between its parts. Those that found no
    // place there are kept alone.
    const bool are_alone = std::exchange(decisions_first_, false);
    const bool is_large = options_.is_shared && !are_alone && are_large(stores_.behind);
    Changes of_stores, decisions;
    if (!are_alone) of_stores.swap(stores_.behind);
    if (!is_large) decisions.swap(decisions_.behind);
    const std::size_t num_decisions = decisions.size();
    const std::uint64_t up_to = num_commits_;
    const bool was_failing = trouble_.has_value();
    if (decisions.empty() && of_stores.empty() && !was_failing && !options_.is_shared) {
      return release(up_to);
    }
    const Clock::time_point begun = Clock::now();
    writing_since_ = begun;
    lock.unlock();
    Batch batch;
    move_to(batch, std::move(decisions));
    move_to(batch, std::move(of_stores));
    std::string what;
    bool done = false, deposed = false;
    try {
      if (is_large) {
        writer_->commit_in_parts(
            batch, [&](const BatchWriter::CommitNow& now) { write_decisions(now, lock); });
      } else {
        writer_->commit(batch);
      }
      done = true;
    } catch (const Deposed& error) {
      deposed = true;
      what = error.what();
    } catch (const std::exception& error) {
      what = error.what();
    }
    lock.lock();
    writing_since_.reset();
    if (deposed) return depose(what);
    if (!done) {
      decisions_.put_back(std::span(batch).first(num_decisions));
      stores_.put_back(std::span(batch).subspan(num_decisions));
      return could_not_write(what);
    }
    if (trouble_) wrote(Clock::now() - begun);
    if (are_alone) return release(decisions_, up_to);
    if (!is_large) return release(up_to);  // the watcher may have released them already
    // Nobody hears of a store's rows before the decisions that came earlier are kept.
    const bool all_decided = decisions_.waits.empty();
    release(stores_, all_decided ? up_to : std::min(up_to, decisions_.waits.front().number - 1));
  }

  // Between the parts of a large batch.
  void write_decisions(const BatchWriter::CommitNow& commit_now, Lock& lock) {
    lock.lock();
    progressed_at_ = Clock::now();
    writing_since_ = progressed_at_;
    if (stopping_ || decisions_.waits.empty()) return lock.unlock();
    const std::uint64_t up_to = num_commits_;
    Changes rows = std::exchange(decisions_.behind, {});
    lock.unlock();
    Batch batch;
    move_to(batch, std::move(rows));
    bool is_kept = false;
    try {
      is_kept = commit_now(batch);
    } catch (...) {
      lock.lock();
      decisions_.put_back(batch);
      lock.unlock();
      throw;
    }
    lock.lock();
    decisions_first_ = !is_kept;
    is_kept ? release(decisions_, up_to) : decisions_.put_back(batch);
    lock.unlock();
  }

  // Called when a write succeeded after trouble. New commits wait for their writes again.
  void wrote(Clock::duration time) {
    if (time >= options_.commit_limit && !options_.is_shared) {  // it hung, and may do so again
      next_try_ = Clock::now() + retry_;
      return;
    }
    trouble_.reset();
    trouble_is_silence_ = false;
    well_since_ = Clock::now();
    watcher_wakes_.notify_one();
    say(LogLevel::kInfo, concat(name_, kUpToDate));
  }

  void could_not_write(const std::string& what) {
    fail(what);
    next_try_ = Clock::now() + retry_;
  }

  // Ends the journal; callers that wait are never called.
  void depose(const std::string& why) {
    deposed_ = true;
    decisions_ = stores_ = {};
    if (!stopping_ && options_.deposed) post_([tell = options_.deposed, why] { tell(why); });
  }

  // The time between attempts grows, even if writes succeeded in between, for at most last_retry.
  void fail(const std::string& what) {
    const Clock::time_point now = Clock::now();
    if (!trouble_ && now - well_since_ > options_.last_retry) retry_ = {};
    retry_ = std::clamp(retry_ * 2, options_.first_retry, options_.last_retry);
    if (trouble_ && !std::exchange(trouble_is_silence_, false)) return;
    const Clock::time_point since = trouble_ ? trouble_->since : now;
    trouble_ = JournalTrouble{what, since};
    if (options_.is_shared) {
      say(LogLevel::kError, concat(what,
                                   "; workers run on, and nothing is decided until it is "
                                   "written there again"));
      return;
    }
    say(LogLevel::kError, concat(what, kInMemory));
    release(num_commits_);
  }

  void release(std::uint64_t up_to) {
    release(decisions_, up_to);
    release(stores_, up_to);
  }

  void release(Lane& lane, std::uint64_t up_to) {
    while (!lane.waits.empty() && lane.waits.front().number <= up_to) {
      calls_.push_back(std::move(lane.waits.front().done));
      lane.waits.pop_front();
    }
    if (stopping_ || calls_.empty() || std::exchange(calling_, true)) return;
    post_([self = shared_from_this()] { self->call_some(); });
  }

  // Runs on the I/O thread. With a slow disk thousands may wait for one write, so the calls are
  // made in turns.
  void call_some() {
    const Clock::time_point begun = Clock::now();
    Lock lock(mutex_);
    while (!stopping_ && !calls_.empty()) {
      if (Clock::now() - begun >= kTurn) {
        return post_([self = shared_from_this()] { self->call_some(); });
      }
      const auto call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
      lock.lock();
    }
    calling_ = false;
  }

  void watch_until_stopped() {
    Lock lock(mutex_);
    std::uint64_t looked_again_at = 0;  // the number of a wait
    while (!stopping_) {
      if (first_wait() == nullptr || trouble_) {
        watcher_sleeps_ = true;
        watcher_wakes_.wait(lock);
        continue;
      }
      const Clock::time_point limit =
          std::max(first_wait()->since, progressed_at_) + options_.commit_limit;
      if (Clock::now() < limit) {
        watcher_wakes_.wait_until(lock, limit);
        continue;
      }
      const std::uint64_t number = first_wait()->number;
      if (std::exchange(looked_again_at, number) != number) {
        watcher_wakes_.wait_for(lock, options_.second_look);
        continue;
      }
      trouble_is_silence_ = false;
      fail(concat("can't write ", name_, ": ", options_.is_shared ? "it" : "the disk",
                  " has not answered for ", options_.commit_limit.count(), " ms"));
      next_try_ = Clock::now();  // the write that hangs is the next attempt
      trouble_is_silence_ = options_.is_shared;
    }
  }

  void say(LogLevel level, std::string text) {
    if (stopping_) return;
    post_([level, text = std::move(text)] { log_message(level, text); });
  }

  // A write under way has the rest of its time, and the last write its own. If the disk is known to
  // hang, there is no further wait.
  void stop(std::thread writer, std::thread watcher) {
    Lock lock(mutex_);
    const Clock::time_point begun = Clock::now();
    const bool was_failing = trouble_.has_value();
    stopping_ = true;
    writer_wakes_.notify_one();
    watcher_wakes_.notify_one();
    if (options_.is_shared) writer_->cancel();
    const auto limit = [&] {
      const auto its = writing_since_.value_or(begun) + options_.commit_limit;
      return options_.is_shared
                 ? std::max(its, begun + std::min(kCancelLimit, options_.commit_limit))
                 : its;
    };
    while (!stopped_ && Clock::now() < limit()) stopped_wakes_.wait_until(lock, limit());
    const bool ended = stopped_;
    lock.unlock();
    if (watcher.joinable()) watcher.join();
    if (!ended) {
      log_error("can't write ", name_, ": the disk hangs; what it has not taken is lost");
      return writer.detach();
    }
    writer.join();
    say_end(was_failing);
  }

  // Logs what is not kept. A shared journal logs nothing: nobody has seen the effects.
  void say_end(bool was_failing) const {
    if (deposed_ || options_.is_shared) return;
    if (has_rows() && trouble_) {
      const auto time = std::chrono::ceil<std::chrono::seconds>(Clock::now() - trouble_->since);
      log_error(trouble_->what, "; what was decided in the last ", time.count(),
                " s is not kept, and lost with this ddprund");
    } else if (was_failing && !trouble_) {
      log_info(name_, kUpToDate);
    }
  }

 private:
  bool has_rows() const { return !decisions_.behind.empty() || !stores_.behind.empty(); }
  // Null: nobody waits.
  const Wait* first_wait() const {
    if (decisions_.waits.empty()) return stores_.waits.empty() ? nullptr : &stores_.waits.front();
    if (stores_.waits.empty()) return &decisions_.waits.front();
    const Wait &one = decisions_.waits.front(), &other = stores_.waits.front();
    return one.number < other.number ? &one : &other;
  }

  const std::unique_ptr<BatchWriter> writer_;
  const std::string name_;
  const std::function<void(std::function<void()>)> post_;
  const JournalOptions options_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable writer_wakes_, watcher_wakes_, stopped_wakes_;
  bool watcher_sleeps_ = false;  // true: a commit must wake the watcher
  Lane decisions_, stores_;
  bool decisions_first_ = false;             // they found no place between the parts of a batch
  Clock::time_point progressed_at_{};        // when a part of a large batch was kept
  std::uint64_t num_commits_ = 0;            // the number of the last wait
  std::deque<std::function<void()>> calls_;  // due calls, in order
  bool calling_ = false;                     // call_some() will run
  std::optional<Clock::time_point> writing_since_;
  bool stopping_ = false, stopped_ = false;
  bool deposed_ = false;
  bool trouble_is_silence_ = false;  // trouble_ is only silence; an answer replaces its text
  std::optional<JournalTrouble> trouble_;
  std::chrono::milliseconds retry_{0};
  Clock::time_point next_try_{}, well_since_{};
};

Journal::Journal(std::unique_ptr<BatchWriter> writer,
                 std::function<void(std::function<void()>)> post, JournalOptions options)
    : shared_(std::make_shared<Shared>(std::move(writer), std::move(post), std::move(options))) {
  const auto shared = shared_;
  writer_thread_ = start_quiet_thread("journal", [shared] { shared->write_until_stopped(); });
  try {
    watcher_thread_ =
        start_quiet_thread("journal-watch", [shared] { shared->watch_until_stopped(); });
  } catch (const Error&) {
    shared_->stop(std::move(writer_thread_), {});
    throw;
  }
}

Journal::~Journal() { shared_->stop(std::move(writer_thread_), std::move(watcher_thread_)); }

void Journal::commit(Batch batch, std::function<void()> done, RowKind kind) {
  shared_->commit(std::move(batch), std::move(done), kind);
}

std::optional<JournalTrouble> Journal::trouble() const { return shared_->trouble(); }

bool Journal::is_shared() const { return shared_->is_shared(); }

bool JournalGate::must_wait(const Batch& changes, bool says_something) const {
  if (journal_ == nullptr) return false;
  return !changes.empty() || !waiting_.empty() || (says_something && journal_->is_shared());
}

void JournalGate::add(Batch changes, std::function<void()> carry_out,
                      std::shared_ptr<const void> owner) {
  DDPRUN_CHECK(journal_ != nullptr);
  waiting_.push_back({std::move(carry_out), {}});
  journal_->commit(
      std::move(changes), [this, owner = std::move(owner)] { kept(); }, kind_);
}

void JournalGate::kept() {
  if (stopped_ || waiting_.empty()) return;
  const Waiting kept = std::move(waiting_.front());
  waiting_.pop_front();
  kept.carry_out();
  for (const auto& done : kept.then) done();
}

void JournalGate::when_kept(std::function<void()> done) {
  if (waiting_.empty()) return done();
  waiting_.back().then.push_back(std::move(done));
}

void JournalGate::stop() {
  stopped_ = true;
  waiting_.clear();
}

}  // namespace ddprun::journal
