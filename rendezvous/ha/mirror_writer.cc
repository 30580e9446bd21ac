// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_writer.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "rendezvous/ha/leader_rows.h"
#include "rendezvous/ha/mirror_rows.h"

namespace ddprun::ha {

using journal::Batch;
using journal::RowChange;
using journal::Rows;
using std::chrono::milliseconds;
using Session = MirrorLink::Session;

namespace {

constexpr milliseconds kEndLimit{2'000};
constexpr std::size_t kLimitStep = std::size_t{16} << 20;

std::size_t size_of(const Batch& batch) {
  std::size_t num_bytes = 0;
  for (const RowChange& row : batch) {
    num_bytes += row.key.size() + (row.content ? row.content->size() : 0);
  }
  return num_bytes;
}

}  // namespace

class MirrorWriter::Impl {
 public:
  Impl(std::unique_ptr<journal::RowFile> file, std::shared_ptr<MirrorLink> link,
       MirrorWriterOptions options)
      : link_(std::move(link)),
        options_(std::move(options)),
        name_(file->name()),
        trouble_(file->trouble()),
        file_(std::move(file)),
        file_is_well_(trouble_.empty()) {}

  const std::string& name() const { return name_; }
  const std::string& trouble() const { return trouble_; }

  void commit(const Batch& batch) {
    const Turn turn(*this, Turn::kCommit);
    const auto session = link_->mirroring();
    if (session && give(*session, batch)) {
      keep(*session, batch);
    } else {
      write_file(batch);
      note_changes(batch);
    }
  }

  void cancel() { link_->cancel(); }

  // ---- its own thread ----
  void copy_until_cancelled() {
    while (!link_->is_cancelled()) {
      const auto session = link_->await_standby(next_try());
      session ? copy(*session) : write_what_is_owed();
    }
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }

  // ---- the end ----
  void stop(std::thread thread) {
    link_->cancel();
    std::unique_lock lock(mutex_);
    const bool ended = changed_.wait_for(lock, kEndLimit, [this] { return is_over_; });
    lock.unlock();
    if (!ended) {
      link_->say(LogLevel::kError, concat("can't read ", name_, ": the disk hangs"));
      thread.detach();
      return;
    }
    thread.join();
    if (owed_.empty()) return;
    try {
      file_->commit(owed());
    } catch (const std::exception&) {  // its trouble was said
      link_->leave(owed());
    }
  }

 private:
  // The file's, and of all that is said of copies below. Commits go first.
  class Turn {
   public:
    enum Of { kCommit, kCopy };
    Turn(Impl& impl, Of of) : impl_(impl) {
      std::unique_lock lock(impl_.mutex_);
      if (of == kCommit) ++impl_.num_commits_waiting_;
      impl_.changed_.wait(lock, [&] {
        return !impl_.is_taken_ && (of == kCommit || impl_.num_commits_waiting_ == 0);
      });
      if (of == kCommit) --impl_.num_commits_waiting_;
      impl_.is_taken_ = true;
    }
    ~Turn() {
      const std::lock_guard lock(impl_.mutex_);
      impl_.is_taken_ = false;
      impl_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Impl& impl_;
  };

  // ---- mirrored commits; in turn ----

  milliseconds limit_for(milliseconds limit, std::size_t num_bytes) const {
    return limit + options_.limit_per_16_mib * static_cast<int>(num_bytes / kLimitStep);
  }

  void send_batch(Session session, const Batch& batch, Deadline deadline) {
    const std::uint64_t number = link_->begin_transfer(session);
    mirror::RowCutter cutter(mirror::Transfer::kBatch, number, [&](std::string part) {
      link_->send_part(session, std::move(part), deadline);
    });
    for (const RowChange& row : batch) {
      if (!is_leader_row(row.key)) cutter.add(row);
    }
    cutter.finish();
    link_->await_ack(session, number, deadline);
  }

  // False: the standby is lost, and was none.
  bool give(Session session, const Batch& batch) {
    try {
      send_batch(session, batch, Deadline::after(limit_for(options_.ack_limit, size_of(batch))));
      return true;
    } catch (const MirrorLost&) {
    } catch (const Error& error) {
      link_->end(session, error.what());
    }
    link_->mirroring();  // or Deposed
    return false;
  }

  // The standby has it.
  void keep(Session session, const Batch& batch) {
    if (!owed_.empty()) return owe(batch);
    try {
      write_file(batch);
    } catch (const std::exception& error) {
      if (link_->stage() != MirrorLink::Stage::kSynced) {
        link_->end(session, concat("this ddprund's own journal fails: ", error.what()));
        throw;
      }
      owe(batch);
      retry_ = options_.first_retry;
      begin_file_trouble(error.what());
    }
  }

  void write_file(const Batch& batch) {
    try {
      file_->commit(batch);
      file_is_well_ = true;
    } catch (...) {
      file_is_well_ = false;
      throw;
    }
  }

  // ---- what the file lacks; in turn ----

  void owe(const Batch& batch) {
    for (const RowChange& row : batch) owed_[row.key] = row.content;
  }

  Batch owed() const {
    Batch batch;
    for (const auto& [key, content] : owed_) batch.push_back({key, content});
    return batch;
  }

  void begin_file_trouble(const std::string& what) {
    next_try_ = Clock::now() + retry_;
    link_->set_file_trouble(what, Clock::now());
    link_->say(LogLevel::kError,
               concat(what,
                      "; jobs go on: the standby has what is decided from now on, and this "
                      "ddprund would lack it if it were started again alone"));
    link_->nudge();
  }

  Clock::time_point next_try() {
    const Turn turn(*this, Turn::kCopy);
    return owed_.empty() ? Clock::now() + std::chrono::hours(24) : next_try_;
  }

  void write_what_is_owed() {
    const Turn turn(*this, Turn::kCopy);
    if (owed_.empty() || Clock::now() < next_try_) return;
    try {
      write_file(owed());
    } catch (const std::exception&) {
      retry_ = std::min(retry_ * 2, options_.last_retry);
      next_try_ = Clock::now() + retry_;
      return;
    }
    owed_.clear();
    link_->set_file_trouble("", {});
    link_->say(LogLevel::kInfo, concat(name_, " is written again, and up to date"));
  }

  // ---- a copy; its own thread ----

  void copy(Session session) {
    try {
      const std::size_t num_bytes = send_snapshot(session);
      link_->await_ack(session, 1, Deadline::after(limit_for(options_.snapshot_limit, num_bytes)));
      while (!catch_up(session)) {
      }
    } catch (const MirrorLost&) {  // said where it is noticed
    } catch (const std::exception& error) {
      link_->end(session, error.what());
    }
    const Turn turn(*this, Turn::kCopy);
    end_copy();
  }

  void end_copy() {
    is_copying_ = false;
    dirty_.clear();
  }

  // Under its turn: so the file has all rows up to here, and `dirty_` gets all that changes.
  void begin_copy() {
    const Turn turn(*this, Turn::kCopy);
    check_file();
    is_copying_ = true;
    is_read_ = false;
    read_up_to_.clear();
    dirty_.clear();
    held_ = options_.held ? options_.held() : std::vector<std::string>();
  }

  void check_file() const {
    if (!file_is_well_) throw std::runtime_error("this ddprund's own journal can't be written");
  }

  // Bytes in it.
  std::size_t send_snapshot(Session session) {
    begin_copy();
    mirror::RowCutter cutter(
        mirror::Transfer::kSnapshot, link_->begin_transfer(session), [&](std::string part) {
          link_->send_part(session, std::move(part), Deadline::after(options_.stall_limit));
        });
    for (Rows rows = next_page(); !rows.empty(); rows = next_page()) {
      for (const auto& [key, content] : rows) {
        if (is_to_be_copied(key)) cutter.add(key, &content);
      }
    }
    bool is_all = false;
    for (const RowChange& row : take_changes(is_all)) cutter.add(row);
    cutter.finish();
    return cutter.num_bytes();
  }

  Rows next_page() {
    const Turn turn(*this, Turn::kCopy);
    Rows rows = file_->read_after(read_up_to_, options_.page_bytes);
    if (rows.empty()) {
      is_read_ = true;
    } else {
      read_up_to_ = rows.rbegin()->first;
    }
    return rows;
  }

  bool is_to_be_copied(const std::string& key) const {
    return !is_leader_row(key) && std::none_of(held_.begin(), held_.end(), [&](const auto& held) {
      return key.starts_with(held);
    });
  }

  // In turn. What was held when the copy began may be let go meanwhile.
  void note_changes(const Batch& batch) {
    if (!is_copying_) return;
    for (const RowChange& row : batch) {
      if (is_leader_row(row.key)) continue;
      const bool will_be_read = !is_read_ && row.key > read_up_to_ && is_to_be_copied(row.key);
      if (!will_be_read) dirty_.insert(row.key);
    }
  }

  Batch take_changes(bool& is_all) {
    const Turn turn(*this, Turn::kCopy);
    return take_changes_in_turn(is_all);
  }

  // What was changed after it was read, as it is now.
  Batch take_changes_in_turn(bool& is_all) {
    Batch changes;
    std::size_t num_bytes = 0;
    while (!dirty_.empty() && num_bytes < options_.page_bytes) {
      const std::string key = dirty_.extract(dirty_.begin()).value();
      changes.push_back({key, file_->read(key)});
      num_bytes += key.size() + (changes.back().content ? changes.back().content->size() : 0);
    }
    is_all = dirty_.empty();
    return changes;
  }

  // True: the standby has all, and commits go there first from now on.
  bool catch_up(Session session) {
    Batch changes;
    {
      const Turn turn(*this, Turn::kCopy);
      bool is_all = false;
      changes = take_changes_in_turn(is_all);
      if (is_all && size_of(changes) <= options_.page_bytes) {
        check_file();
        if (!changes.empty()) {
          send_batch(session, changes, Deadline::after(options_.last_step_limit));
        }
        end_copy();
        link_->mirror(session);
        return true;
      }
    }
    send_batch(session, changes,
               Deadline::after(limit_for(options_.snapshot_limit, size_of(changes))));
    return false;
  }

  // Constant after construction.
  const std::shared_ptr<MirrorLink> link_;  // second owner: the io thread's end
  const MirrorWriterOptions options_;
  const std::string name_, trouble_;

  // Of the thread whose turn it is.
  const std::unique_ptr<journal::RowFile> file_;
  bool file_is_well_;
  std::map<std::string, std::optional<std::string>>
      owed_;  // that the standby has, and the file not
  milliseconds retry_{0};
  Clock::time_point next_try_{};
  bool is_copying_ = false;
  bool is_read_ = false;           // to its end
  std::string read_up_to_;         // name of the last row that was read
  std::set<std::string> dirty_;    // names of rows that were changed since they were read
  std::vector<std::string> held_;  // as of the copy's begin

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_taken_ = false;
  int num_commits_waiting_ = 0;
  bool is_over_ = false;
};

MirrorWriter::MirrorWriter(std::unique_ptr<journal::RowFile> file, std::shared_ptr<MirrorLink> link,
                           MirrorWriterOptions options)
    : impl_(std::make_shared<Impl>(std::move(file), std::move(link), std::move(options))) {
  thread_ = start_quiet_thread("mirror-copy", [impl = impl_] { impl->copy_until_cancelled(); });
}

MirrorWriter::~MirrorWriter() { impl_->stop(std::move(thread_)); }

void MirrorWriter::commit(const Batch& batch) { impl_->commit(batch); }
void MirrorWriter::cancel() { impl_->cancel(); }
std::string MirrorWriter::name() const { return impl_->name(); }
std::string MirrorWriter::trouble() const { return impl_->trouble(); }

}  // namespace ddprun::ha
