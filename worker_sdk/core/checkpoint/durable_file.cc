// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/durable_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <utility>

#include "common/clock.h"
#include "common/fd_text.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "common/regular_file.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"
#include "worker_sdk/core/checkpoint/safetensors.h"

namespace ddprun {
namespace {

template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Returns ": it takes 14.4 MB, 9.6 MB are free". Empty: the file system doesn't tell.
std::string room_text(const std::string& directory, const std::vector<std::string_view>& pieces) {
  struct statvfs info {};
  if (::statvfs(directory.c_str(), &info) != 0) return "";
  double bytes = 0;
  for (const std::string_view piece : pieces) bytes += static_cast<double>(piece.size());
  const double free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  char text[80];
  std::snprintf(text, sizeof text, ": it takes %.1f MB, %.1f MB are free", bytes / 1e6, free / 1e6);
  return text;
}

constexpr std::chrono::milliseconds kPause{20};  // between tries: flock() takes no deadline
// A holder that isn't seen may have released the lock just now. After this time it is on another
// machine, or may only read the directory.
constexpr std::chrono::milliseconds kUnseen{500};

// Returns the process that holds the lock on that directory; 0: none is visible here.
pid_t holder_of(const struct stat& directory) {
  const std::string inode = concat(':', directory.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    // 1: FLOCK  ADVISORY  WRITE 4711 08:01:262146 0 EOF
    std::istringstream words(line);
    std::string number, kind, advisory, access, place;
    pid_t pid = 0;
    if (!(words >> number >> kind >> advisory >> access >> pid >> place)) continue;
    if (kind == "FLOCK" && place.ends_with(inode)) return pid;
  }
  return 0;
}

bool is_alive(pid_t pid) { return pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM); }

// Returns whether the process may write the directory, by its real user: it may have become a
// set-user-ID program. Access lists are not checked.
bool may_write(pid_t pid, const struct stat& directory) {
  if ((directory.st_mode & S_IWOTH) != 0) return true;
  std::ifstream status(concat("/proc/", pid, "/status"));
  if (!status) return true;  // a machine may hide other users' processes
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);  // "Uid: REAL EFFECTIVE …", "Gid: REAL …", "Groups: ONE …"
    std::string key;
    words >> key;
    const bool is_user = key == "Uid:", is_group = key == "Gid:" || key == "Groups:";
    for (unsigned id = 0; (is_user || is_group) && words >> id;) {
      if (is_user && (id == 0 || id == ::geteuid() || id == directory.st_uid)) return true;
      if (is_group && id == directory.st_gid && (directory.st_mode & S_IWGRP) != 0) return true;
      if (key != "Groups:") break;
    }
  }
  return false;
}

}  // namespace

void write_durably(const std::string& path, const std::vector<std::string_view>& pieces) {
  const std::string what = "can't write the checkpoint " + path;
  const std::string directory = std::filesystem::path(path).parent_path().string();
  int why = 0;
  const auto require = [&](bool done) {
    if (!done) throw_system_error(what, why = errno);
  };
  NewFile file = make_new_file(concat(path, kTemporaryMark), 0666);
  try {
    require(static_cast<bool>(file.fd));
    for (const std::string_view piece : pieces) {
      why = write_text(file.fd.get(), piece);
      if (why != 0) throw_system_error(what, why);
    }
    require(::fsync(file.fd.get()) == 0);
    // A network file system may report only now that there was no room.
    require(::close(file.fd.release()) == 0);
    require(::rename(file.path.c_str(), path.c_str()) == 0);
    sync_directory(directory, what);
  } catch (const Error& error) {
    file.fd.reset();  // its room is free only after it is closed
    ::unlink(file.path.c_str());
    if (why != ENOSPC) throw;
    throw Error(error.code(), error.what() + room_text(directory, pieces));
  }
}

void sync_directory(const std::string& path, const std::string& what) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_system_error(what, errno);
  // EINVAL: a file system without fsync for directories, which doesn't need it.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) throw_system_error(what, errno);
}

std::string read_whole(const std::string& path) {
  const std::string what = "can't read the checkpoint " + path;
  // O_NONBLOCK: opening a pipe of that name must not block.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw_system_error(what, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_system_error(what, errno);
  const auto size = static_cast<std::size_t>(info.st_size);
  std::string bytes;
  // Reads up to byte `end`. False: the file is shorter.
  const auto read_up_to = [&](std::size_t end) {
    std::size_t done = bytes.size();
    bytes.resize(end);
    for (ssize_t n = 1; done < end && n > 0; done += static_cast<std::size_t>(n)) {
      n = retry_interrupted([&] { return ::read(fd.get(), bytes.data() + done, end - done); });
      if (n < 0) throw_system_error(what, errno);
    }
    bytes.resize(done);
    return done == end;
  };
  try {
    if (!read_up_to(std::min(size, kLengthBytes)) || !read_up_to(header_end(bytes, size))) {
      return bytes;
    }
    check_size(bytes, size);
    read_up_to(size);
  } catch (const std::bad_alloc&) {
    throw_error(ErrorCode::kResourceExhausted, what, ": no memory for its ", size, " bytes");
  }
  return bytes;
}

DirectoryLock::DirectoryLock(const std::string& path, std::chrono::milliseconds patience)
    : directory_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  struct stat info {};
  if (!directory_ || ::fstat(directory_.get(), &info) != 0) return;
  const Clock::time_point deadline = Clock::now() + patience;
  Clock::time_point seen = Clock::now();
  while (::flock(directory_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return;
    const pid_t holder = holder_of(info);
    const Clock::time_point now = Clock::now();
    const bool is_seen = is_alive(holder) && may_write(holder, info);
    if (is_seen) seen = now;
    if (holder == ::getpid()) return;
    if (now - seen >= kUnseen) {
      log_warning("another process has locked the checkpoint directory ", path,
                  ": it is on another machine or may not write there, so this training goes on "
                  "without the lock");
      return;
    }
    if (is_seen && now >= deadline) {
      throw_invalid("process ", holder, " uses the checkpoint directory ", path,
                    ": one training per directory; end that one, or give another directory");
    }
    std::this_thread::sleep_for(kPause);
  }
}

WriterThread::~WriterThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WriterThread::start(std::function<void()> task) {
  wait();
  if (!thread_.joinable()) {
    thread_ = start_quiet_thread("ddprun-ckpt", [this] { run(); });
  }
  {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
  }
  changed_.notify_all();
}

void WriterThread::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !task_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void WriterThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return task_ || ends_; });
    if (!task_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      task_();  // no other thread changes it until it is done
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    task_ = nullptr;
    error_ = error;
    changed_.notify_all();
  }
}

}  // namespace ddprun
