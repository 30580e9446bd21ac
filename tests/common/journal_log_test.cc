// SPDX-License-Identifier: Apache-2.0
#include "common/journal_log.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "common/fd_message.h"
#include "common/log.h"
#include "tests/support/catch.h"
#include "tests/support/forked_child.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;

namespace {

class Journald {
 public:
  Journald() {
    socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  std::string path() const { return directory_.path("socket"); }
  void end() { socket_.reset(); }

  // The next datagram, or the content of the file that came in its place.
  std::string next() {
    std::string text(1 << 16, '\0');
    const FdMessage message = receive_with_fd(socket_.get(), text.data(), text.size());
    if (message.size < 0) return "nothing";
    text.resize(static_cast<std::size_t>(message.size));
    if (!message.fd) return text;
    CHECK(text.empty());
    seals_ = ::fcntl(message.fd.get(), F_GET_SEALS);
    struct stat status {};
    REQUIRE(::fstat(message.fd.get(), &status) == 0);
    text.resize(static_cast<std::size_t>(status.st_size));
    CHECK(::pread(message.fd.get(), text.data(), text.size(), 0) == status.st_size);
    return text;
  }
  int seals() const { return seals_; }

 private:
  const test::TempDirectory directory_;
  UniqueFd socket_;
  int seals_ = 0;
};

}  // namespace

TEST_CASE("JournalLog: an entry is one datagram, a line for each field") {
  Journald journald;
  const JournalLog log(journald.path());
  CHECK(log.write({{"MESSAGE", "a=b"}, {"PRIORITY", "4"}}));
  CHECK(journald.next() == "MESSAGE=a=b\nPRIORITY=4\n");
}

TEST_CASE("JournalLog: a value with a line break has its length before it") {
  Journald journald;
  const JournalLog log(journald.path());
  CHECK(log.write({{"MESSAGE", "two\nlines"}, {"PRIORITY", "6"}}));
  using namespace std::string_literals;
  CHECK(journald.next() == "MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\nPRIORITY=6\n"s);
}

TEST_CASE("JournalLog: what is too large for a datagram is a sealed file") {
  Journald journald;
  const JournalLog log(journald.path());
  const std::string large(8 << 20, 'x');
  CHECK(log.write({{"MESSAGE", large}}));
  CHECK(journald.next() == "MESSAGE=" + large + "\n");
  CHECK(journald.seals() == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL));
}

TEST_CASE("JournalLog: a journald that reads nothing, or is gone, is not waited for") {
  Journald journald;
  const JournalLog log(journald.path());
  int taken = 0;
  while (taken < 100'000 && log.write({{"MESSAGE", "x"}})) ++taken;
  CHECK(taken > 0);
  CHECK(taken < 100'000);
  CHECK(journald.next() == "MESSAGE=x\n");
  CHECK(log.write({{"MESSAGE", "again"}}));
  journald.end();
  CHECK_FALSE(log.write({{"MESSAGE", "x"}}));
}

TEST_CASE("JournalLog: behind stderr where JOURNAL_STREAM names it") {
  CHECK(test::run_forked([] {
          struct stat status {};
          ::fstat(STDERR_FILENO, &status);
          const auto here = concat(status.st_dev, ':', status.st_ino);
          const auto is_behind = [](const std::string& stream) {
            ::setenv("JOURNAL_STREAM", stream.c_str(), 1);
            return JournalLog::behind_stderr().has_value();
          };
          const bool right = is_behind(here) && !is_behind("") && !is_behind("8:1") &&
                             !is_behind(here + "0") && !is_behind("x");
          ::unsetenv("JOURNAL_STREAM");
          ::_exit(right && !JournalLog::behind_stderr() ? 0 : 1);
        }).status == 0);
}

TEST_CASE("LogJob: what this thread logs is about the innermost one") {
  CHECK(LogJob::current().empty());
  const LogJob outer("mine");
  {
    const LogJob inner("other");
    CHECK(LogJob::current() == "other");
  }
  CHECK(LogJob::current() == "mine");
}
