// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"

namespace ddprun {
namespace {

constexpr std::chrono::milliseconds kPause{20};  // flock() itself knows no deadline
// A holder that isn't seen may just have let go of the lock: after so long it is on another
// machine.
constexpr std::chrono::milliseconds kUnseen{500};

// Of the lock on the open file `fd`; 0: it is no process that we see.
pid_t holder_of(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return 0;
  const std::string inode = concat(':', info.st_ino);
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

}  // namespace

DirectoryLock::DirectoryLock(const std::string& path, std::chrono::milliseconds patience)
    : directory_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  const Clock::time_point deadline = Clock::now() + patience;
  Clock::time_point seen = Clock::now();
  while (directory_ && ::flock(directory_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return;
    const pid_t holder = holder_of(directory_.get());
    const Clock::time_point now = Clock::now();
    const bool is_seen = is_alive(holder);
    if (is_seen) seen = now;
    if (holder == ::getpid() || now - seen >= kUnseen) return;
    if (is_seen && now >= deadline) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat("process ", holder, " uses the checkpoint directory ", path,
                         ": one training per directory; end that one, or give another directory"));
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace ddprun
