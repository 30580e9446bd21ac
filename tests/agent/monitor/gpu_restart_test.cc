// SPDX-License-Identifier: Apache-2.0
// LazyGpuHelper over scripts in place of ddprun-gpus, which can be killed or end by themselves.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "agent/gpu/gpu_helper.h"
#include "common/clock.h"
#include "common/env_names.h"
#include "common/log.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace ddprun::agent;
using ddprun::test::Contains;
using std::chrono::milliseconds;

namespace {

std::vector<std::string>& logged() {
  static std::vector<std::string> all;
  return all;
}

// A script that logs its pid, then does `what`. logged() returns the log lines of that time.
class Script {
 public:
  explicit Script(const std::string& what) {
    std::ofstream(program()) << "#!/bin/sh\necho $$ >> " << folder_.path() << "/pids\n" << what;
    ::chmod(program().c_str(), 0700);
    ::setenv(env::kNvmlLibrary, "some", 1);  // says that there is a driver
    logged().clear();
    set_log_sink([](LogLevel, std::string_view line) { logged().emplace_back(line); });
  }
  ~Script() { ::unsetenv(env::kNvmlLibrary); }
  std::string program() const { return folder_.path() + "/gpus"; }
  std::vector<pid_t> pids() const {
    std::ifstream file(folder_.path() + "/pids");
    std::vector<pid_t> all;
    for (pid_t pid = 0; file >> pid;) all.push_back(pid);
    return all;
  }

 private:
  test::TempDirectory folder_;
};

// Asks again and again, until there are this many answers or the time is over.
int answers(boost::asio::io_context& io, LazyGpuHelper& helper, int wanted,
            milliseconds most = milliseconds{30'000}) {
  int num = 0;
  const auto deadline = Deadline::after(most);
  while (num < wanted && !deadline.expired()) {
    helper.ask(GpuRequest::kStatus, [&](const std::string& lines) {
      CHECK(lines == "0 celsius 61\n");
      ++num;
    });
    io.restart();
    io.run_one_for(milliseconds{5});
  }
  return num;
}

constexpr char kAnswers[] =
    "while [ -n \"$(dd bs=1 count=1 2>/dev/null)\" ]; do printf '0 celsius 61\\n.\\n'; done\n";

}  // namespace

TEST_CASE("LazyGpuHelper: one that was killed is started again, and that is said once") {
  Script script(kAnswers);
  boost::asio::io_context io;
  LazyGpuHelper helper(io, script.program(), {.first_wait = milliseconds{20}});
  REQUIRE(answers(io, helper, 2) == 2);
  REQUIRE(script.pids().size() == 1);
  CHECK(logged().empty());
  ::kill(script.pids().front(), SIGKILL);
  REQUIRE(answers(io, helper, 2) == 2);
  CHECK(script.pids().size() == 2);
  REQUIRE(logged().size() == 1);
  CHECK_THAT(logged().front(), Contains("ddprun-gpus has ended") && Contains("0.02 s"));
}

TEST_CASE("LazyGpuHelper: a helper that never answers is tried ever more seldom, without a word") {
  Script script("exit 1\n");
  boost::asio::io_context io;
  LazyGpuHelper helper(io, script.program(),
                       {.first_wait = milliseconds{1}, .longest_wait = std::chrono::hours{1}});
  CHECK(answers(io, helper, 1, milliseconds{300}) == 0);
  CHECK(script.pids().size() >= 2);
  CHECK(script.pids().size() <= 9);  // pauses of 1, 2, 4, … ms: 8 restarts take 255 ms
  CHECK(logged().empty());
}
