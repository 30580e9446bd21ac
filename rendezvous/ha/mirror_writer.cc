// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_writer.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "common/log.h"
#include "common/quiet_thread.h"
#include "rendezvous/ha/mirror_copy.h"
#include "rendezvous/ha/mirror_turns.h"

namespace ddprun::ha {

using journal::Batch;
using Session = MirrorLink::Session;

namespace {
constexpr std::chrono::milliseconds kEndLimit{2'000};
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
        copy_(*link_, options_, *file_, turns_) {}

  const std::string& name() const { return name_; }
  const std::string& trouble() const { return trouble_; }

  void commit(const Batch& batch) {
    const MirrorTurn turn(turns_);
    const auto session = link_->mirroring();
    const bool is_given = session && give(*session, batch);
    write_file(batch);
    if (!is_given) copy_.note_changes(batch);
    link_->mirroring();  // a disk that hung may have cost the term meanwhile
  }

  void cancel() {
    link_->cancel();
    turns_.cancel();
  }

  // ---- its own thread ----
  void copy_until_cancelled() {
    while (const auto session = link_->await_standby()) copy_.run(*session);
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    over_.notify_all();
  }

  // ---- the end ----
  void stop(std::thread thread) {
    cancel();
    std::unique_lock lock(mutex_);
    const bool ended = over_.wait_for(lock, kEndLimit, [this] { return is_over_; });
    lock.unlock();
    if (ended) return thread.join();
    link_->say(LogLevel::kError, concat("can't read ", name_, ": the disk hangs"));
    thread.detach();
  }

 private:
  // In turn. False: the standby is lost, and was none.
  bool give(Session session, const Batch& batch) {
    const auto limit = limit_for(options_, options_.ack_limit, size_of(batch));
    try {
      send_batch(*link_, session, batch, Deadline::after(limit));
      return true;
    } catch (const MirrorLost&) {
    } catch (const std::exception& error) {  // a row is too large, say
      if (link_->is_cancelled()) throw;
      link_->end(session, error.what());
    }
    link_->mirroring();  // or Deposed
    return false;
  }

  // In turn. Where it fails a standby may go on in place of this one.
  void write_file(const Batch& batch) {
    link_->set_writes(true);
    try {
      file_->commit(batch);
    } catch (const std::exception& error) {
      link_->set_writes(false);
      link_->end_by_own_disk(concat("this ddprund's own journal fails: ", error.what()));
      link_->mirroring();  // or Deposed
      throw;
    }
    link_->set_writes(false);
  }

  // Constant after construction.
  const std::shared_ptr<MirrorLink> link_;  // second owner: the io thread's end
  const MirrorWriterOptions options_;
  const std::string name_, trouble_;

  MirrorTurns turns_;
  // Of the thread whose turn it is.
  const std::unique_ptr<journal::RowFile> file_;
  MirrorCopy copy_;

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable over_;
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
