// SPDX-License-Identifier: Apache-2.0
#include "agent/output/log_writer.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "common/error.h"
#include "common/quiet_thread.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

// The user is told when files have taken nothing for so long.
constexpr std::chrono::seconds kPatience{5};

}  // namespace

LogWriter::LogWriter(boost::asio::io_context& io, std::function<void(const std::string&)> notice)
    : notice_(std::move(notice)),
      queue_(std::make_shared<LogQueue>(
          [&io](LogQueue::Task task) { boost::asio::post(io, std::move(task)); })),
      patience_(io) {}

LogWriter::~LogWriter() { close(); }

// Leaves the thread alone if it is inside a write or an errand: it may hang there. It keeps the
// queue, and ends with the process.
void LogWriter::close() {
  patience_.cancel();
  const bool returns_now = queue_->end();
  if (!thread_.joinable()) return;
  returns_now ? thread_.join() : thread_.detach();
}

void LogWriter::start_thread() {
  if (thread_.joinable() || has_no_thread_) return;
  queue_->set_first_lost([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->notice_) return;
    const LogQueue::Losses losses = self->queue_->losses();
    self->notice_(concat("can't write ", losses.first_path, " (", losses.first_reason,
                         "): what workers write to their log files is lost until they can be "
                         "written again; the workers go on"));
  });
  try {
    thread_ = start_quiet_thread("ddprun-logs", [queue = queue_] { queue->run(); });
  } catch (const Error&) {
    has_no_thread_ = true;
  }
}

std::unique_ptr<LogWriter::File> LogWriter::open(const std::string& path, LogFileOptions options) {
  start_thread();
  return opened(queue_->open(path, std::move(options)));
}

std::unique_ptr<LogWriter::File> LogWriter::open_sink(std::string name, LogQueue::MakeSink make) {
  start_thread();
  return opened(queue_->open_sink(std::move(name), std::move(make)));
}

std::unique_ptr<LogWriter::File> LogWriter::opened(LogQueue::FilePtr queued) {
  auto file = std::make_unique<File>(shared_from_this(), std::move(queued));
  if (has_no_thread_) queue_->write_all();
  return file;
}

std::function<void(LogQueue::Task)> LogWriter::poster() const {
  return [queue = queue_](LogQueue::Task task) { queue->post(std::move(task)); };
}

void LogWriter::flush() { has_no_thread_ ? queue_->write_all() : queue_->flush(); }

bool LogWriter::call_thread(LogQueue::Task task) {
  start_thread();
  if (!has_no_thread_) return queue_->call(std::move(task), Deadline::after(kCallLimit));
  task();
  return true;
}

bool LogWriter::ask_thread(LogQueue::Task task) {
  start_thread();
  return !has_no_thread_ && queue_->run_errand(std::move(task));
}

void LogWriter::lost(const std::string& path, const std::string& why, std::size_t num_bytes) {
  start_thread();
  queue_->lost(path, why, num_bytes);
}

bool LogWriter::finish(Deadline deadline) {
  hangs_ = !queue_->wait_idle(deadline);
  return !hangs_;
}

std::vector<std::string> LogWriter::losses() const {
  std::vector<std::string> texts;
  if (const LogQueue::Losses losses = queue_->losses(); losses.num_bytes > 0) {
    texts.push_back(concat(losses.num_bytes,
                           " bytes of the workers' output could not be written to their log "
                           "files (",
                           losses.first_path, " was the first)"));
  }
  if (hangs_) {
    texts.push_back(concat(queue_->num_queued_bytes(),
                           " bytes of the workers' output (or of events) may be missing in their "
                           "log files: writing ",
                           queue_->busy_with(), " hasn't come to an end"));
  }
  if (const auto time = std::chrono::duration_cast<std::chrono::seconds>(stood_still_);
      time >= kPatience) {
    texts.push_back(concat("workers waited ", time.count(),
                           " s in all for log files that could not be written meanwhile"));
  }
  return texts;
}

void LogWriter::begin_waiting() {
  if (num_waiting_++ > 0) return;
  writes_seen_ = queue_->num_writes();
  waiting_since_ = Clock::now();
  watch_progress();
}

// Warns only if the disk stands still; one that is just slow is no problem.
void LogWriter::watch_progress() {
  run_after(patience_, kPatience, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->num_waiting_ == 0 || self->standstill_since_) return;
    const std::uint64_t writes = self->queue_->num_writes();
    if (std::exchange(self->writes_seen_, writes) != writes) {
      self->waiting_since_ = Clock::now();
      return self->watch_progress();
    }
    self->standstill_since_ = self->waiting_since_;
    if (!self->notice_) return;
    self->notice_(concat("nothing could be written to log files for ", kPatience.count(), " s (",
                         self->queue_->busy_with(),
                         "; its file system doesn't answer?): workers that write much wait"));
  });
}

void LogWriter::end_waiting() {
  if (standstill_since_) {
    stood_still_ += Clock::now() - *std::exchange(standstill_since_, std::nullopt);
    waiting_since_ = Clock::now();
    writes_seen_ = queue_->num_writes();
    if (num_waiting_ > 1) watch_progress();
  }
  if (--num_waiting_ == 0) patience_.cancel();
}

LogWriter::File::~File() {
  writer_->queue_->close(file_);
  if (writer_->has_no_thread_) writer_->queue_->write_all();
}

void LogWriter::File::append(std::string_view bytes) {
  if (bytes.empty()) return;
  writer_->queue_->append(file_, bytes);
}

bool LogWriter::File::is_full() const { return writer_->queue_->is_full(*file_); }

void LogWriter::File::when_room(std::function<void()> on_room) {
  writer_->begin_waiting();
  writer_->queue_->when_room(file_,
                             [weak = writer_->weak_from_this(), on_room = std::move(on_room)] {
                               if (const auto writer = weak.lock()) writer->end_waiting();
                               on_room();
                             });
}

}  // namespace ddprun::agent
