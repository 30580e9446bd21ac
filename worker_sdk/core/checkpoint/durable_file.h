// SPDX-License-Identifier: Apache-2.0
// How a checkpoint's files are written, off the training thread. They are whole or not there,
// whatever happens to the process or the machine meanwhile. One process has the directory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun {

// Writes `pieces`, one after the other, under a temporary name beside `path`, fsyncs, renames to
// `path` (which is replaced) and fsyncs the directory. Throws Error(kSystem) "can't write the
// checkpoint PATH: …"; then `path` is as before, and nothing else is left. Several processes, on
// whatever hosts, may write the same file at the same time.
void write_durably(const std::string& path, const std::vector<std::string_view>& pieces);

// Makes its new, renamed and removed entries survive a power loss. Throws Error(kSystem) that
// begins with `what`.
void sync_directory(const std::string& path, const std::string& what);

// Reads the whole file of safetensors. Throws Error(kSystem) or, without memory for it,
// Error(kResourceExhausted) "can't read the checkpoint PATH: …". Throws Error(kProtocol) that says
// why it is none. It does so before it takes memory if the size isn't what the header says.
std::string read_whole(const std::string& path);

// Finds out that another process of this machine uses the same directory. Held by the process, as
// long as this object lives; several of one process don't disturb each other. It ends with the
// process, however that ends. Nothing is written to the directory.
class DirectoryLock {
 public:
  // Waits up to `patience` for another process to end, then throws Error(kInvalidArgument) that
  // names it. Holds no lock if the file system has none, or if another machine has this one. A
  // machine that is gone must not keep a training from going on. Nor must a process whose user may
  // only read the directory, which is enough to lock it.
  DirectoryLock(const std::string& path, std::chrono::milliseconds patience);

 private:
  UniqueFd directory_;
};

// Writes off the training thread: one task at a time on a thread of its own. Called from one
// thread. The next start() or wait() throws what a task threw, once.
class WriterThread {
 public:
  WriterThread() = default;
  // Waits for the task under way: it has somebody's buffers. The task's exception is lost.
  ~WriterThread();
  WriterThread(const WriterThread&) = delete;
  WriterThread& operator=(const WriterThread&) = delete;

  // Waits for the task under way, if any, and returns with the new one begun. Throws what the
  // earlier one threw, Error(kResourceExhausted) where there can be no thread; then nothing began.
  void start(std::function<void()> task);

  // When it returns no task is under way. As long as the disk takes: there is no way to take back
  // what the kernel writes.
  void wait();

 private:
  void run();

  // Caller's thread.
  std::thread thread_;  // from the first start() on

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;  // empty: none is under way
  std::exception_ptr error_;
  bool ends_ = false;
};

}  // namespace ddprun
