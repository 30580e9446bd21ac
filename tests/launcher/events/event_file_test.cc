// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/job_records.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/full_disk.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace ddprun::launcher;

namespace {

struct Fixture {
  test::TempDirectory directory;
  std::vector<std::string> said;

  EventFileOptions options(const std::string& path) {
    EventFileOptions options;
    options.open = [path](std::string& problem) {
      UniqueFd file = open_event_file(path);
      if (!file) problem = errno_text(errno);
      return file;
    };
    options.lost = [this](const std::string& why) { said.push_back(why); };
    options.patience = std::chrono::milliseconds(0);
    return options;
  }
  std::string read(const std::string& path) const {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
};

// All bytes that are in a pipe.
std::string taken_from(int fd) {
  std::string text;
  std::array<char, 65536> buffer;
  ssize_t size = 0;
  while ((size = ::read(fd, buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return text;
}

}  // namespace

TEST_CASE("event file: lines are appended, also to another job's") {
  Fixture f;
  const std::string path = f.directory.path("e");
  EventFile(f.options(path)).write("{\"a\":1}\n{\"b\":2}\n");
  EventFile(f.options(path)).write("{\"c\":3}\n");
  CHECK(f.read(path) == "{\"a\":1}\n{\"b\":2}\n{\"c\":3}\n");
  CHECK(f.said.empty());
}

TEST_CASE("event file: a line that is a number says how many are missing there") {
  Fixture f;
  const std::string path = f.directory.path("e");
  EventFile(f.options(path)).write("{\"a\":1}\n12\n{\"b\":2}\n{\"c\":3}\n");
  CHECK(f.read(path) == "{\"a\":1}\n{\"b\":2,\"lost\":12}\n{\"c\":3}\n");
}

TEST_CASE("event file: missing lines are told in the log if the file may not say so") {
  Fixture f;
  const std::string path = f.directory.path("e");
  EventFileOptions options = f.options(path);
  options.says_lost = false;
  EventFile(options).write("{\"a\":1}\n12\n{\"b\":2}\n");
  CHECK(f.read(path) == "{\"a\":1}\n{\"b\":2}\n");
  CHECK(f.said == std::vector<std::string>{"it takes less than comes"});
}

TEST_CASE("event file: a full disk is said once, and the next line that is written has the loss") {
  Fixture f;
  const std::string path = f.directory.path("e");
  EventFile file(f.options(path));
  file.write("{\"a\":1}\n");
  {
    const test::FullDisk full(8);
    file.write("{\"b\":2}\n");
    file.write("{\"c\":3}\n{\"d\":4}\n");
  }
  file.write("{\"e\":5}\n{\"f\":6}\n");
  CHECK(f.read(path) == "{\"a\":1}\n{\"e\":5,\"lost\":3}\n{\"f\":6}\n");
  CHECK(f.said == std::vector<std::string>{errno_text(EFBIG)});
}

TEST_CASE("event file: the rest of a line that a full disk cut off follows when there is room") {
  Fixture f;
  const std::string path = f.directory.path("e");
  EventFile file(f.options(path));
  {
    const test::FullDisk full(5);
    file.write("{\"a\":1}\n{\"b\":2}\n");
  }
  CHECK(f.read(path) == "{\"a\":");
  file.write("{\"c\":3}\n");
  CHECK(f.read(path) == "{\"a\":1}\n{\"c\":3,\"lost\":1}\n");
  CHECK(f.said.size() == 1);
}

TEST_CASE("event file: /dev/full takes nothing, which is said") {
  Fixture f;
  EventFile file(f.options("/dev/full"));
  for (int i = 0; i < 3; ++i) file.write("{\"a\":1}\n");
  CHECK(f.said == std::vector<std::string>{errno_text(ENOSPC)});
}

TEST_CASE("event file: one that can't be opened is tried again with each line") {
  Fixture f;
  const std::string parent = f.directory.path("d"), path = parent + "/e";
  EventFile file(f.options(path));
  file.write("{\"a\":1}\n");
  CHECK(f.said == std::vector<std::string>{errno_text(ENOENT)});
  REQUIRE(::mkdir(parent.c_str(), 0700) == 0);
  file.write("{\"b\":2}\n");
  CHECK(f.read(path) == "{\"b\":2,\"lost\":1}\n");
}

TEST_CASE("event file: a link of another user is not opened") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root gives links away");
  Fixture f;
  const std::string path = f.directory.path("link"), target = f.directory.path("target");
  REQUIRE(::symlink(target.c_str(), path.c_str()) == 0);
  CHECK(open_event_file(path));
  REQUIRE(::lchown(path.c_str(), 12345, 12345) == 0);
  CHECK_FALSE(open_event_file(path));
  CHECK(errno == ELOOP);
}

TEST_CASE("event file: a pipe without a reader can't be opened, one that nobody empties is full") {
  Fixture f;
  const std::string path = f.directory.path("p");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_FALSE(open_event_file(path));
  CHECK(errno == ENXIO);
  UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(reader);
  EventFile file(f.options(path));
  const std::string line = "{\"a\":\"" + std::string(4000, 'x') + "\"}\n";
  for (int i = 0; i < 100; ++i) file.write(line);
  CHECK(f.said == std::vector<std::string>{"its reader takes nothing"});
  const std::size_t num_taken = taken_from(reader.get()).size() / line.size();
  file.write("{\"b\":2}\n");
  CHECK(taken_from(reader.get()) == "{\"b\":2,\"lost\":" + std::to_string(100 - num_taken) + "}\n");
  reader.reset();
  std::signal(SIGPIPE, SIG_IGN);  // ddprun ignores it, too
  file.write("{\"c\":3}\n");
  CHECK(f.said.size() == 1);
}
