// SPDX-License-Identifier: Apache-2.0
// The bytes that are still to be written to log files. The io thread fills the queue; the thread in
// run() empties it. So only that thread hangs when a file system doesn't answer. Every member may
// be called from any thread; none of the io thread's calls waits for a file.
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

// A destination of the thread that writes log files. Only that thread uses it.
class LogSink {
 public:
  LogSink() = default;
  virtual ~LogSink() = default;
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;

  // Writes the bytes, which were queued since the last call. Reports by itself those that it can't
  // write.
  virtual void write(std::string_view bytes) = 0;
};

// The place of log files. If `fd` is set, the files are in the directory that is open there.
// Another user may have put something else in place of `path` since then.
struct LogFolder {
  // Returns the name in `fd` of a path that leads into it; without `fd` the path itself.
  std::string name_of(const std::string& inner) const {
    return fd ? inner.substr(path.size() + 1) : inner;
  }

  std::string path;                    // empty: none
  std::shared_ptr<const UniqueFd> fd;  // shared with its files
};

struct LogFileOptions {
  LogFolder folder = {};        // the file's path leads into it; without one the path is followed
  std::uint64_t max_bytes = 0;  // 0: no limit
  int keep = 1;                 // number of older parts that stay: NAME.1 is the youngest
  // Called each time that something could not be written. May be empty.
  std::function<void(const std::string& path, const std::string& why, std::size_t num_bytes)> lost =
      {};
};

// One log file that ddprun writes: it appends, and rotates the file where its size is limited. One
// thread at a time.
class LogFile : public LogSink {
 public:
  // Makes the file, empty. If that fails, every write tries again.
  LogFile(std::string path, LogFileOptions options);

  // Writes all bytes, or tells `lost` how many it didn't. A limited file is cut after a newline if
  // `bytes` have one. It exceeds the limit by the end of a line at most.
  void write(std::string_view bytes) override;

  const std::string& path() const { return path_; }

 private:
  void write_now(std::string_view bytes);
  void rotate();

  const std::string path_;
  const LogFileOptions options_;
  const std::string name_;  // in the folder; without a folder the path
  RegularFile file_;
  std::uint64_t size_ = 0;
};

// Makes the file, empty; also for a worker that writes to it itself. Never blocks, whatever
// somebody has put in its place.
RegularFile open_log_file(const std::string& path, const LogFolder& folder);

class LogQueue : public std::enable_shared_from_this<LogQueue> {
 public:
  using Task = std::function<void()>;
  using MakeSink = std::function<std::unique_ptr<LogSink>()>;

  // A file with this many queued bytes is full: the caller should read no more for it. The queue
  // still takes more bytes.
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
    // Used by the writer only.
    std::unique_ptr<LogSink> sink_;
  };
  using FilePtr = std::shared_ptr<File>;  // shared with ready_, or the writer

  struct Losses {
    std::uint64_t num_bytes = 0;
    std::string first_path;  // empty: none
    std::string first_reason;
  };

  // `post` has a task called on the io thread, and returns at once.
  explicit LogQueue(std::function<void(Task)> post) : post_(std::move(post)) {}

  // Makes the file, empty, before anything that is queued later is written. `options.lost` is
  // ignored: losses() has what could not be written, and the task of set_first_lost() is posted
  // once.
  FilePtr open(const std::string& path, LogFileOptions options);
  // Does the same for any kind of sink: the writer calls `make`. `name` is shown to people.
  FilePtr open_sink(std::string name, MakeSink make);
  // Queues the bytes. They are written after the next flush(), so that many bytes need one wake-up
  // of the writer.
  void append(const FilePtr& file, std::string_view bytes);
  void flush();
  // Closes the file after what is queued for it is written.
  void close(const FilePtr& file);

  bool is_full(const File& file) const;
  // Posts `task` once: when at most half of kMaxQueuedBytes is queued, or the file is closed.
  void when_room(const FilePtr& file, Task task);

  // Has `task` called on the io thread. Does nothing after end().
  void post(Task task);

  void set_first_lost(Task task);
  void lost(const std::string& path, const std::string& why, std::size_t num_bytes);
  Losses losses() const;

  // Has the writer call `task` before it goes on with files, and waits. False: the deadline came
  // first, and the task may be called at any later time. Also false if another such task still
  // waits; then this one isn't called. From one thread at a time.
  bool call(Task task, Deadline deadline);

  // Has the writer call `task`, which throws nothing, before it goes on with files. Nobody waits
  // for it. False: it won't be called, since kMaxErrands of them wait, or end() was called. Tasks
  // that still wait at end() aren't called either.
  bool run_errand(Task task);

  // Waits until everything is written; false: it was not before the deadline.
  bool wait_idle(Deadline deadline) const;
  // The bytes that are queued or being written, and the file that the writer is busy with; empty:
  // none.
  std::uint64_t num_queued_bytes() const;
  std::string busy_with() const;
  // Returns the number of writes that have returned.
  std::uint64_t num_writes() const;

  // Runs the writer: returns after end(), when nothing is queued.
  void run();
  // Does the same where there is no thread, but returns when nothing is queued.
  void write_all();
  // Ends posting: nothing is posted any more, and no errand begins. run() returns as soon as
  // everything is written. True: everything is. False: the writer is inside a call that may never
  // end.
  bool end();

 private:
  // These are called with mutex_ held.
  void make_ready(const FilePtr& file);
  void wake_writer();
  void tell_waiters(File& file);
  void do_next(std::unique_lock<std::mutex>& lock);
  void do_errand(std::unique_lock<std::mutex>& lock);
  void write_next(std::unique_lock<std::mutex>& lock);
  bool is_idle() const { return ready_.empty() && !current_ && !task_; }  // with mutex_ held

  mutable std::mutex mutex_;
  std::condition_variable work_;          // signalled when something is ready, or at the end
  mutable std::condition_variable idle_;  // signalled when nothing is ready, or call() has ended

  // Guarded by mutex_.
  std::function<void(Task)> post_;  // empty after end()
  Task first_lost_;
  std::deque<FilePtr> ready_;  // files with something to do, oldest first
  FilePtr current_;            // the writer is busy with it
  Task task_;                  // of call(), until it has ended
  std::deque<Task> errands_;   // not begun yet
  bool is_on_errand_ = false;
  std::uint64_t num_queued_bytes_ = 0;
  std::uint64_t num_writes_ = 0;
  Losses losses_;
  bool ended_ = false;

  // Used by the writer only. Its memory is swapped with the files' buffers.
  std::string batch_;
};

}  // namespace ddprun::agent
