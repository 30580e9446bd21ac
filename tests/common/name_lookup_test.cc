// SPDX-License-Identifier: Apache-2.0
#include "common/socket.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "common/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace std::chrono_literals;
using ddprun::test::Contains;

TEST_CASE("look_up: a number is answered at once, also when the deadline has passed") {
  const NameLookup found = look_up({"127.0.0.1", 7}, Deadline::after(0ms));
  REQUIRE(found.addresses.size() == 1);
  CHECK(found.addresses.front().text() == "127.0.0.1:7");
  CHECK(found.failure.empty());
}

TEST_CASE("look_up: a name's answer, or the reason why there is none", "[net]") {
  CHECK(look_up({"localhost", 7}, Deadline::after(10s)).addresses.front().is_loopback());
  const NameLookup none = look_up({"two words", 7}, Deadline::after(10s));
  CHECK(none.addresses.empty());
  CHECK_THAT(none.failure, Contains("\"two words\""));
}

namespace {

// Holds the resolver. It reads the file of this variable before it asks a name server. The file is
// a FIFO, so it waits until somebody writes there.
class HeldResolver {
 public:
  HeldResolver() {
    REQUIRE(::mkfifo(path_.c_str(), 0600) == 0);
    ::setenv("HOSTALIASES", path_.c_str(), 1);
  }
  ~HeldResolver() { ::unsetenv("HOSTALIASES"); }

  // Lets the resolver go on, with a name that can't be found; false: it was not waiting.
  bool release() {
    UniqueFd alias;
    for (const Deadline deadline = Deadline::after(10s); !alias.valid() && !deadline.expired();) {
      alias = UniqueFd(::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    }
    const std::string line = "unheard no..name\n";
    return ::write(alias.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  }

 private:
  test::TempDirectory directory_;
  const std::string path_ = directory_.path("aliases");
};

int num_look_ups() {
  int num = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    num += name == "ddprun-names" ? 1 : 0;
  }
  return num;
}

bool all_end() {
  const Deadline deadline = Deadline::after(10s);
  while (num_look_ups() > 0 && !deadline.expired()) std::this_thread::yield();
  return num_look_ups() == 0;
}

}  // namespace

TEST_CASE("look_up: the deadline holds, and the late answer finds nobody", "[net]") {
  REQUIRE(all_end());  // waits for the look-ups of earlier cases
  HeldResolver resolver;
  const NameLookup none = look_up({"unheard", 7}, Deadline::after(50ms));
  CHECK(none.addresses.empty());
  CHECK_THAT(none.failure, Contains("no answer in time"));
  REQUIRE(num_look_ups() == 1);
  REQUIRE(resolver.release());
  CHECK(all_end());
}

TEST_CASE("look_up_in_background: answers on another thread", "[net]") {
  const auto answer = std::make_shared<std::promise<std::thread::id>>();
  auto waiting = answer->get_future();
  look_up_in_background({"localhost", 7}, [answer](const NameLookup&) {
    answer->set_value(std::this_thread::get_id());
  });
  REQUIRE(waiting.wait_for(10s) == std::future_status::ready);
  CHECK(waiting.get() != std::this_thread::get_id());
}
