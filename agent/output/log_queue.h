// SPDX-License-Identifier: Apache-2.0
// The bytes that are still to be written to log files. The io thread fills the queue; the thread
// that runs run() empties it, so that only that thread stops when a file system doesn't answer.
// Every member may be called from any thread; none of the io thread's calls waits for a file.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/regular_file.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

// A destination of the thread that writes log files. For that thread only.
class LogSink {
 public:
  LogSink() = default;
  virtual ~LogSink() = default;
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;

  // Writes the bytes queued meanwhile, in their order. Reports by itself those that it can't write.
  virtual void write(std::string_view bytes) = 0;
};

// The place of log files. If `fd` is set, they are in what is open there, whatever another user has
// put in place of `path` since it was made.
struct LogFolder {
  // The name in `fd` of a path that leads into it; without `fd` the path itself.
  std::string name_of(const std::string& inner) const {
    return fd ? inner.substr(path.size() + 1) : inner;
  }

  std::string path;                    // empty: none
  std::shared_ptr<const UniqueFd> fd;  // second owners: its files
};

struct LogFileOptions {
  LogFolder folder = {};        // that the file's path leads into; without one the path is followed
  std::uint64_t max_bytes = 0;  // 0: no limit
  int keep = 1;                 // older parts that stay: NAME.1 is the youngest
  // Told of what could not be written, each time. May be empty.
  std::function<void(const std::string& path, const std::string& why, std::size_t num_bytes)> lost =
      {};
};

// One log file that we write: appended to, rotated where its size is bounded. One thread at a time.
class LogFile : public LogSink {
 public:
  // Makes the file, empty. If that fails, every write tries again.
  LogFile(std::string path, LogFileOptions options);

  // Writes all of it, or tells `lost` how much wasn't. A bounded file is cut behind a newline if
  // one is in `bytes`, and exceeds its bound by the end of a line at most.
  void write(std::string_view bytes) override;

  const std::string& path() const { return path_; }

 private:
  void write_now(std::string_view bytes);
  void rotate();

  const std::string path_;
  const LogFileOptions options_;
  const std::string name_;  // in the folder; without one the path
  RegularFile file_;
  std::uint64_t size_ = 0;
};

// Makes the file, empty; also for a worker that writes to it itself. Whoever put something else in
// its place holds up nobody.
RegularFile open_log_file(const std::string& path, const LogFolder& folder);

class LogQueue : public std::enable_shared_from_this<LogQueue> {
 public:
  using Task = std::function<void()>;
  using MakeSink = std::function<std::unique_ptr<LogSink>()>;

  // A file with this much queued is full: no more should be read for it. The queue still takes more
  // bytes.
  static constexpr std::size_t kMaxQueuedBytes = 128 * 1024;
  static constexpr std::size_t kMaxErrands = 16;

  class File {
    friend class LogQueue;
    // Constant after construction.
    std::string path_;
    MakeSink make_;
    // Guarded by LogQueue::mutex_.
    std::string pending_;
    bool is_ready_ = false;   // in ready_
    bool is_closed_ = false;  // nothing more comes
    std::vector<Task> waiters_;
    // Writer only.
    std::unique_ptr<LogSink> sink_;
  };
  using FilePtr = std::shared_ptr<File>;  // second owner: ready_, or the writer

  struct Losses {
    std::uint64_t num_bytes = 0;
    std::string first_path;  // empty: none
    std::string first_reason;
  };

  // `post` has a task called on the io thread, and returns at once.
  explicit LogQueue(std::function<void(Task)> post) : post_(std::move(post)) {}

  // The file is made, empty, before what is queued later is written. `options.lost` is ignored:
  // losses() has what could not be written, and `first_lost` (may be empty) is posted once.
  FilePtr open(const std::string& path, LogFileOptions options);
  // The same for any kind of sink: the writer calls `make`. `name` is shown to people.
  FilePtr open_sink(std::string name, MakeSink make);
  // Written after the next flush(): one wake-up of the writer for many bytes.
  void append(const FilePtr& file, std::string_view bytes);
  void flush();
  // After what is queued the file is closed.
  void close(const FilePtr& file);

  bool is_full(const File& file) const;
  // `task` is posted, once, when at most half of the bound is queued, or the file is closed.
  void when_room(const FilePtr& file, Task task);

  // Has `task` called on the io thread, unless the end has come.
  void post(Task task);

  void set_first_lost(Task task);
  void lost(const std::string& path, const std::string& why, std::size_t num_bytes);
  Losses losses() const;

  // Has the writer call `task` before it goes on with files, and waits. False: the deadline came
  // first, and the task may be called at any later time. False, too: another task of this kind is
  // still waiting, and this one isn't called. From one thread at a time.
  bool call(Task task, Deadline deadline);

  // Has the writer call `task`, which throws nothing, before it goes on with files. Nobody waits
  // for it. false: it won't be called, since kMaxErrands of them wait, or the end has come. Tasks
  // that still wait at the end aren't called either.
  bool run_errand(Task task);

  // Until everything is written; false: not before the deadline.
  bool wait_idle(Deadline deadline) const;
  // Bytes that are queued or on their way, and the file that the writer is busy with; empty: none.
  std::uint64_t num_queued_bytes() const;
  std::string busy_with() const;
  // Grows with every write that has returned.
  std::uint64_t num_writes() const;

  // The writer: returns after end(), when nothing is queued.
  void run();
  // As run(), but returns when nothing is queued: where there is no thread.
  void write_all();
  // Nothing is posted any more, and no errand begins. run() returns as soon as everything is
  // written. true: that is now. false: the writer is inside something that may never end.
  bool end();

 private:
  // With mutex_ held.
  void make_ready(const FilePtr& file);
  void wake_writer();
  void tell_waiters(File& file);
  void do_next(std::unique_lock<std::mutex>& lock);
  void do_errand(std::unique_lock<std::mutex>& lock);
  void write_next(std::unique_lock<std::mutex>& lock);
  bool is_idle() const { return ready_.empty() && !current_ && !task_; }  // with mutex_ held

  mutable std::mutex mutex_;
  std::condition_variable work_;          // something is ready, or the end has come
  mutable std::condition_variable idle_;  // nothing is, or call() has come to an end

  // Guarded by mutex_.
  std::function<void(Task)> post_;  // empty after end()
  Task first_lost_;
  std::deque<FilePtr> ready_;  // with something to do, in the order in which it came
  FilePtr current_;            // the writer is busy with it
  Task task_;                  // of call(), until it has come to an end
  std::deque<Task> errands_;   // not begun yet
  bool is_on_errand_ = false;
  std::uint64_t num_queued_bytes_ = 0;
  std::uint64_t num_writes_ = 0;
  Losses losses_;
  bool ended_ = false;

  // Writer only: its capacity goes round among the files.
  std::string batch_;
};

}  // namespace ddprun::agent
