// SPDX-License-Identifier: Apache-2.0
#include "agent/output/log_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "common/error.h"

namespace ddprun::agent {

RegularFile open_log_file(const std::string& path, const LogFolder& folder) {
  // Opens the file at its end: two processes that write to one file don't overwrite each other.
  if (!folder.fd) return open_regular_file_to_append(path, 0666, O_TRUNC);
  return open_regular_file_to_append_in(folder.fd->get(), folder.name_of(path), path, 0666,
                                        O_TRUNC);
}

LogFile::LogFile(std::string path, LogFileOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      name_(options_.folder.name_of(path_)),
      file_(open_log_file(path_, options_.folder)) {}

void LogFile::write(std::string_view bytes) {
  while (options_.max_bytes > 0 && size_ + bytes.size() > options_.max_bytes) {
    const std::uint64_t room = options_.max_bytes - std::min(size_, options_.max_bytes);
    std::size_t cut = room == 0 ? std::string_view::npos : bytes.rfind('\n', room - 1);
    if (cut == std::string_view::npos && size_ == 0) cut = bytes.find('\n');
    if (cut == std::string_view::npos && size_ == 0) cut = bytes.size() - 1;
    if (cut != std::string_view::npos) {
      write_now(bytes.substr(0, cut + 1));
      bytes.remove_prefix(cut + 1);
    }
    if (bytes.empty()) return;
    rotate();
  }
  write_now(bytes);
}

void LogFile::write_now(std::string_view bytes) {
  if (!file_.fd) file_ = open_log_file(path_, options_.folder);
  while (!bytes.empty()) {
    const ssize_t written = file_.fd ? ::write(file_.fd.get(), bytes.data(), bytes.size()) : -1;
    if (written > 0) {
      size_ += static_cast<std::uint64_t>(written);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (!file_.fd || errno != EINTR) {
      const std::string why = file_.fd ? errno_text(errno) : file_.problem;
      if (options_.lost) options_.lost(path_, why, bytes.size());
      return;
    }
  }
}

// If a part can't be renamed, the file is begun anew all the same, so that the limit holds.
void LogFile::rotate() {
  const auto part = [this](int number) { return name_ + "." + std::to_string(number); };
  const int folder = options_.folder.fd ? options_.folder.fd->get() : AT_FDCWD;
  for (int number = options_.keep; number > 0; --number) {
    const std::string from = number == 1 ? name_ : part(number - 1);
    ::renameat(folder, from.c_str(), folder, part(number).c_str());
  }
  file_ = open_log_file(path_, options_.folder);
  size_ = 0;
}

LogQueue::FilePtr LogQueue::open(const std::string& path, LogFileOptions options) {
  options.lost = [this](const std::string& of, const std::string& why, std::size_t num_bytes) {
    lost(of, why, num_bytes);
  };
  return open_sink(path, [path, options = std::move(options)] {
    return std::make_unique<LogFile>(path, options);
  });
}

LogQueue::FilePtr LogQueue::open_sink(std::string name, MakeSink make) {
  auto file = std::make_shared<File>();
  file->path_ = std::move(name);
  file->make_ = std::move(make);
  const std::lock_guard lock(mutex_);
  make_ready(file);
  wake_writer();
  return file;
}

void LogQueue::make_ready(const FilePtr& file) {
  if (std::exchange(file->is_ready_, true)) return;
  ready_.push_back(file);
}

void LogQueue::wake_writer() {
  if (!ready_.empty() && !current_) work_.notify_one();
}

void LogQueue::flush() {
  const std::lock_guard lock(mutex_);
  wake_writer();
}

void LogQueue::append(const FilePtr& file, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  file->pending_.append(bytes);
  num_queued_bytes_ += bytes.size();
  make_ready(file);
}

void LogQueue::close(const FilePtr& file) {
  const std::lock_guard lock(mutex_);
  file->is_closed_ = true;
  tell_waiters(*file);
  make_ready(file);
  wake_writer();
}

bool LogQueue::is_full(const File& file) const {
  const std::lock_guard lock(mutex_);
  return file.pending_.size() >= kMaxQueuedBytes;
}

void LogQueue::when_room(const FilePtr& file, Task task) {
  const std::lock_guard lock(mutex_);
  if (file->pending_.size() > kMaxQueuedBytes / 2) {
    file->waiters_.push_back(std::move(task));
  } else if (post_) {
    post_(std::move(task));
  }
}

void LogQueue::post(Task task) {
  const std::lock_guard lock(mutex_);
  if (post_) post_(std::move(task));
}

void LogQueue::set_first_lost(Task task) {
  const std::lock_guard lock(mutex_);
  first_lost_ = std::move(task);
}

void LogQueue::lost(const std::string& path, const std::string& why, std::size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  losses_.num_bytes += num_bytes;
  if (!losses_.first_path.empty()) return;
  losses_.first_path = path;
  losses_.first_reason = why;
  if (post_ && first_lost_) post_(first_lost_);
}

LogQueue::Losses LogQueue::losses() const {
  const std::lock_guard lock(mutex_);
  return losses_;
}

bool LogQueue::call(Task task, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (task_) return false;
  task_ = std::move(task);
  work_.notify_one();
  return idle_.wait_until(lock, deadline.at(), [this] { return !task_; });
}

bool LogQueue::run_errand(Task task) {
  const std::lock_guard lock(mutex_);
  if (ended_ || errands_.size() + (is_on_errand_ ? 1 : 0) >= kMaxErrands) return false;
  errands_.push_back(std::move(task));
  work_.notify_one();
  return true;
}

bool LogQueue::wait_idle(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline.at(), [this] { return is_idle(); });
}

std::uint64_t LogQueue::num_queued_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_queued_bytes_;
}

std::string LogQueue::busy_with() const {
  const std::lock_guard lock(mutex_);
  return current_ ? current_->path_ : "";
}

std::uint64_t LogQueue::num_writes() const {
  const std::lock_guard lock(mutex_);
  return num_writes_;
}

void LogQueue::tell_waiters(File& file) {
  for (Task& task : std::exchange(file.waiters_, {})) {
    if (post_) post_(std::move(task));
  }
}

void LogQueue::do_next(std::unique_lock<std::mutex>& lock) {
  if (!task_ && !errands_.empty()) return do_errand(lock);
  if (!task_) return write_next(lock);
  lock.unlock();
  task_();  // while it is set, no other thread uses it
  lock.lock();
  task_ = nullptr;
  idle_.notify_all();
}

// Counts the errand as waiting until it has ended.
void LogQueue::do_errand(std::unique_lock<std::mutex>& lock) {
  const Task errand = std::move(errands_.front());
  errands_.pop_front();
  is_on_errand_ = true;
  lock.unlock();
  errand();
  lock.lock();
  is_on_errand_ = false;
}

// Writes all that is queued for one file, in one write.
void LogQueue::write_next(std::unique_lock<std::mutex>& lock) {
  current_ = std::move(ready_.front());
  ready_.pop_front();
  File& file = *current_;
  file.is_ready_ = false;
  batch_.swap(file.pending_);
  const bool closes = file.is_closed_;
  tell_waiters(file);
  lock.unlock();
  if (!file.sink_) file.sink_ = file.make_();
  if (!batch_.empty()) file.sink_->write(batch_);
  if (closes) file.sink_.reset();
  lock.lock();
  num_queued_bytes_ -= batch_.size();
  ++num_writes_;
  batch_.clear();
  // The bytes of a worker's end may have exceeded the limit.
  if (batch_.capacity() > 2 * kMaxQueuedBytes) std::string().swap(batch_);
  current_.reset();
  if (is_idle()) idle_.notify_all();
}

void LogQueue::run() {
  const auto self = shared_from_this();  // the io thread's owner may be gone
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return ended_ || !ready_.empty() || task_ || !errands_.empty(); });
    if (ended_ && is_idle()) return;
    do_next(lock);
  }
}

void LogQueue::write_all() {
  std::unique_lock lock(mutex_);
  while (!is_idle()) do_next(lock);
}

bool LogQueue::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  post_ = nullptr;
  first_lost_ = nullptr;
  errands_.clear();
  work_.notify_all();
  return is_idle() && !is_on_errand_;
}

}  // namespace ddprun::agent
