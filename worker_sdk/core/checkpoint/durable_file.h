// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint's files off the training thread. A file is whole or not there, even if the
// process or the machine fails meanwhile. One process owns the directory.
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
// any hosts, may write the same file at the same time.
void write_durably(const std::string& path, const std::vector<std::string_view>& pieces);

// Makes the directory's new, renamed and removed entries survive a power loss. Throws
// Error(kSystem) that begins with `what`.
void sync_directory(const std::string& path, const std::string& what);

// Reads the whole safetensors file. Throws Error(kSystem) or, without memory for it,
// Error(kResourceExhausted) "can't read the checkpoint PATH: …". Throws Error(kProtocol), which
// says why the file is invalid. A size that isn't the header's is found before memory is taken.
std::string read_whole(const std::string& path);

// Detects that another process of this machine uses the same directory. The process holds the lock
// as long as this object lives; several objects of one process don't disturb each other. The lock
// ends with the process, however that ends. Nothing is written to the directory.
class DirectoryLock {
 public:
  // Waits up to `patience` for another process to end, then throws Error(kInvalidArgument) that
  // names it. Goes on without a lock if the file system has none. It also does so if the lock's
  // holder is on another machine or may only read the directory: neither must stop a training.
  DirectoryLock(const std::string& path, std::chrono::milliseconds patience);

 private:
  UniqueFd directory_;
};

// Writes off the training thread: one task at a time on a thread of its own. One thread calls it.
// The next start() or wait() throws what a task threw, once.
class WriterThread {
 public:
  WriterThread() = default;
  // Waits for the task under way, which uses its caller's buffers. The task's exception is lost.
  ~WriterThread();

  // Waits for the task under way, if any, and returns when the new one has begun. Throws what the
  // earlier one threw, or Error(kResourceExhausted) if no thread can be started; then nothing
  // began.
  void start(std::function<void()> task);

  // Waits until no task is under way. This takes as long as the disk does: a write in the kernel
  // can't be cancelled.
  void wait();

 private:
  void run();

  // Used on the caller's thread.
  std::thread thread_;  // from the first start() on

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;  // empty: none is under way
  std::exception_ptr error_;
  bool ends_ = false;
};

}  // namespace ddprun
