// SPDX-License-Identifier: Apache-2.0
// Log files as the io thread sees them. A thread of their own writes them (log_queue.h), in bounded
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
  // Well below the time in which a node that says nothing is lost.
  static constexpr std::chrono::milliseconds kCallLimit{2'000};

  class File {
   public:
    File(std::shared_ptr<LogWriter> writer, LogQueue::FilePtr file)
        : writer_(std::move(writer)), file_(std::move(file)) {}
    ~File();  // what was appended is still written
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    // Takes all of it, to be written after the writer's flush(). A bound of the file's size holds
    // at the end of a line where there is one.
    void append(std::string_view bytes);
    // The file takes bytes more slowly than they come, or not at all: append no more.
    bool is_full() const;
    // `on_room` is called once, and never from inside this call, when that may have changed.
    void when_room(std::function<void()> on_room);

   private:
    const std::shared_ptr<LogWriter> writer_;  // second owner: the console
    const LogQueue::FilePtr file_;
  };

  // `notice` has warnings for the user; may be empty.
  LogWriter(boost::asio::io_context& io, std::function<void(const std::string&)> notice);
  ~LogWriter();  // see finish(); waits for nothing

  // Makes the file, empty. If it can't be made, every write tries again. Starts the thread. If
  // there can be none (a limit of processes), the io thread writes files.
  std::unique_ptr<File> open(const std::string& path, LogFileOptions options);
  // The same for any kind of sink, see LogQueue::open_sink().
  std::unique_ptr<File> open_sink(std::string name, LogQueue::MakeSink make);
  // Has tasks called on the io thread, from any thread, until close().
  std::function<void(LogQueue::Task)> poster() const;

  // The end of a batch: what was appended is to be written.
  void flush();

  // Runs `task`, which uses the log directory but doesn't write logs, on the thread, and returns
  // its result. The io thread waits for kCallLimit at most. nullopt: no answer, and `task` may be
  // called later or not at all. It throws nothing, and owns what it uses.
  template <typename Result>
  std::optional<Result> call(std::function<Result()> task) {
    const auto result = std::make_shared<std::optional<Result>>();  // second owner: the thread
    const bool done = call_thread([result, task = std::move(task)] { result->emplace(task()); });
    return done ? std::move(*result) : std::nullopt;
  }

  // Has `done` called on the io thread with what `task` returned, which reads something. That may
  // take as long as its file system does: nobody waits for it. Not called after close(). false:
  // neither is called, for too many wait already, or there is no thread.
  template <typename Result>
  bool ask(std::function<Result()> task, std::function<void(Result)> done) {
    return ask_thread([queue = queue_, task = std::move(task), done = std::move(done)] {
      queue->post([done, result = task()] { done(result); });
    });
  }

  // A file could not be written: said once, counted.
  void lost(const std::string& path, const std::string& why, std::size_t num_bytes);

  // Waits until all is written, blocking the caller. false: not before the deadline; then losses()
  // includes the rest, which may be written later or not at all. For the end of the program.
  bool finish(Deadline deadline);

  // The lost output, and why, one sentence each; empty: nothing was lost.
  std::vector<std::string> losses() const;

  // Nothing is said or called any more. For the end of the owner.
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
  const std::shared_ptr<LogQueue> queue_;  // second owner: the thread, which may hang for ever

  std::thread thread_;
  bool has_no_thread_ = false;  // there could be none
  bool hangs_ = false;          // finish() has seen its deadline
  boost::asio::steady_timer patience_;
  std::size_t num_waiting_ = 0;  // workers that aren't read because their file is full
  std::uint64_t writes_seen_ = 0;
  Clock::time_point waiting_since_{};
  std::optional<Clock::time_point> standstill_since_;  // set: it was said that nothing is written
  std::chrono::nanoseconds stood_still_{0};
};

}  // namespace ddprun::agent
