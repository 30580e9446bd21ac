// SPDX-License-Identifier: Apache-2.0
// Log files as the io thread sees them. Another thread writes them (log_queue.h), in bounded
// memory, so that a file system that hangs never holds up the agent. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "agent/output/log_queue.h"
#include "common/clock.h"

namespace ddprun::agent {

class LogWriter : public std::enable_shared_from_this<LogWriter> {
 public:
  // Well below the time after which a node that says nothing counts as lost.
  static constexpr std::chrono::milliseconds kCallLimit{2'000};

  class File {
   public:
    File(std::shared_ptr<LogWriter> writer, LogQueue::FilePtr file)
        : writer_(std::move(writer)), file_(std::move(file)) {}
    ~File();  // what was appended is still written
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    // Takes all bytes; they are written after the writer's flush(). A file whose size is limited is
    // rotated at the end of a line where there is one.
    void append(std::string_view bytes);
    // Whether the file takes bytes more slowly than they come, or not at all: append no more.
    bool is_full() const;
    // Calls `on_room` once when that may have changed, and never from inside this call.
    void when_room(std::function<void()> on_room);

   private:
    const std::shared_ptr<LogWriter> writer_;  // shared with the console
    const LogQueue::FilePtr file_;
  };

  // `notice` is called with warnings for the user; may be empty.
  LogWriter(boost::asio::io_context& io, std::function<void(const std::string&)> notice);
  ~LogWriter();  // see finish(); waits for nothing

  // Makes the file, empty. If it can't be made, every write tries again. Starts the thread; if
  // there can be none (a limit of processes), the io thread writes the files.
  std::unique_ptr<File> open(const std::string& path, LogFileOptions options);
  // Does the same for any kind of sink, see LogQueue::open_sink().
  std::unique_ptr<File> open_sink(std::string name, LogQueue::MakeSink make);
  // Returns a function that any thread may call: it has tasks called on the io thread, until
  // close().
  std::function<void(LogQueue::Task)> poster() const;

  // Ends a batch: what was appended is written.
  void flush();

  // Runs `task` on the thread and returns its result. The task uses the log directory but doesn't
  // write logs. The io thread waits for kCallLimit at most. nullopt: there was no answer, and
  // `task` may be called later or not at all. It throws nothing, and owns what it uses.
  template <typename Result>
  std::optional<Result> call(std::function<Result()> task) {
    const auto result = std::make_shared<std::optional<Result>>();  // shared with the thread
    const bool done = call_thread([result, task = std::move(task)] { result->emplace(task()); });
    return done ? std::move(*result) : std::nullopt;
  }

  // Runs `task`, which reads something, on the thread, and has `done` called on the io thread with
  // its result. That may take as long as the file system does: nobody waits for it. `done` is not
  // called after close(). False: neither is called, since too many wait already, or there is no
  // thread.
  template <typename Result>
  bool ask(std::function<Result()> task, std::function<void(Result)> done) {
    return ask_thread([queue = queue_, task = std::move(task), done = std::move(done)] {
      queue->post([done, result = task()] { done(result); });
    });
  }

  // Called when a file could not be written. The user is told once; the bytes are counted.
  void lost(const std::string& path, const std::string& why, std::size_t num_bytes);

  // Waits until all is written, blocking the caller. False: not all was before the deadline. Then
  // losses() includes the rest, which may be written later or not at all. For the program's end.
  bool finish(Deadline deadline);

  // Returns which output was lost, and why, one sentence each; empty: nothing was lost.
  std::vector<std::string> losses() const;

  // Ends all calls: no notice and no task any more. For the end of the owner.
  void close();

 private:
  void start_thread();
  std::unique_ptr<File> opened(LogQueue::FilePtr queued);
  bool call_thread(LogQueue::Task task);
  bool ask_thread(LogQueue::Task task);
  void begin_waiting();
  void end_waiting();
  void watch_progress();

  const std::function<void(const std::string&)> notice_;
  const std::shared_ptr<LogQueue> queue_;  // shared with the thread, which may hang for ever

  std::thread thread_;
  bool has_no_thread_ = false;  // the thread could not be started
  bool hangs_ = false;          // finish() has reached its deadline
  boost::asio::steady_timer patience_;
  std::size_t num_waiting_ = 0;  // number of workers that aren't read because their file is full
  std::uint64_t writes_seen_ = 0;
  Clock::time_point waiting_since_{};
  // Since when nothing is written, if the user was told so.
  std::optional<Clock::time_point> standstill_since_;
  std::chrono::nanoseconds stood_still_{0};
};

}  // namespace ddprun::agent
