// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/durable_file.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

#include "common/error.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace std::chrono_literals;
using test::contains;
using test::error_of;

namespace {

// A process that has the lock until end().
class Holder {
 public:
  explicit Holder(const std::string& path, std::optional<uid_t> user = {}) {
    int ready[2], go[2];
    REQUIRE((::pipe(ready) == 0 && ::pipe(go) == 0));
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(go[1]);
      if (user && (::setgroups(0, nullptr) != 0 || ::setresgid(*user, *user, *user) != 0 ||
                   ::setresuid(*user, *user, *user) != 0)) {
        ::_exit(2);
      }
      const DirectoryLock lock(path, 0ms);
      char byte = 0;
      if (::write(ready[1], &byte, 1) == 1 && ::read(go[0], &byte, 1) == 0) ::_exit(0);
      ::_exit(1);
    }
    ::close(ready[1]);
    ::close(go[0]);
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
    end_ = go[1];
  }
  ~Holder() { end(); }
  void end() {
    if (end_ < 0) return;
    ::close(end_);
    end_ = -1;
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int end_ = -1;
};

}  // namespace

TEST_CASE("directory lock: another process is named, and once it is gone there is room", "[proc]") {
  const test::TempDirectory temp;
  Holder holder(temp.path());
  const Error error = error_of([&] { DirectoryLock(temp.path(), 50ms); });
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(contains(error.what(), concat("process ", holder.pid(), " uses the checkpoint directory ",
                                      temp.path(), ": one training per directory")));
  holder.end();
  const DirectoryLock lock(temp.path(), 0ms);
  CHECK(std::filesystem::is_empty(temp.path()));
}

TEST_CASE("directory lock: a user who may only read the directory keeps nobody out", "[proc]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root is two users");
  constexpr uid_t kOther = 1234;
  const test::TempDirectory temp;
  const auto set_mode = [&](mode_t mode) { REQUIRE(::chmod(temp.path().c_str(), mode) == 0); };
  set_mode(0755);
  const Holder holder(temp.path(), kOther);
  const DirectoryLock goes_on(temp.path(), 0ms);
  // One who may write, as everybody, as a member of the group or as the owner.
  const auto is_refused = [&] {
    return contains(error_of([&] { DirectoryLock(temp.path(), 0ms); }).what(),
                    concat("process ", holder.pid(), " uses the checkpoint directory"));
  };
  set_mode(0777);
  CHECK(is_refused());
  set_mode(0775);
  REQUIRE(::chown(temp.path().c_str(), 0, kOther) == 0);
  CHECK(is_refused());
  set_mode(0755);
  REQUIRE(::chown(temp.path().c_str(), kOther, 0) == 0);
  CHECK(is_refused());
}

TEST_CASE("directory lock: one process may have several", "[proc]") {
  const test::TempDirectory temp;
  std::optional<DirectoryLock> first(std::in_place, temp.path(), 0ms);
  const DirectoryLock second(temp.path(), 0ms);
}

TEST_CASE("directory lock: one that is let go of at any moment is taken", "[proc]") {
  const test::TempDirectory temp;
  const auto open_directory = [&] {
    return UniqueFd(::open(temp.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  };
  const UniqueFd mine = open_directory();
  const pid_t other = ::fork();
  if (other == 0) {
    const UniqueFd theirs = open_directory();
    const pid_t parent = ::getppid();
    while (::getppid() == parent) {
      ::flock(theirs.get(), LOCK_EX);
      ::flock(theirs.get(), LOCK_UN);
    }
    ::_exit(0);
  }
  constexpr int kLocks = 80, kTries = 20;
  int num_without = 0;
  for (int i = 0; i < kLocks; ++i) {
    const DirectoryLock lock(temp.path(), 10s);
    bool is_free = false;  // the other process unlocks it again and again
    for (int each = 0; each < kTries && !is_free; ++each) {
      is_free = ::flock(mine.get(), LOCK_EX | LOCK_NB) == 0;
      ::sched_yield();
    }
    ::flock(mine.get(), LOCK_UN);
    num_without += is_free;
  }
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  CHECK(num_without == 0);
}
