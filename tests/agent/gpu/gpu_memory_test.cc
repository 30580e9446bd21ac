// SPDX-License-Identifier: Apache-2.0
// GpuMemory over the real ddprun-gpus and an NVML whose answers a file gives.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "agent/gpu/gpu_helper.h"
#include "agent/warden_process.h"
#include "common/clock.h"
#include "common/env_names.h"
#include "common/process_facts.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace ddprun::agent;
using ddprun::test::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr char kDead[] = "1 2147483600 2147483648\n";  // above any pid

class Node {
 public:
  explicit Node(const std::string& first_list) {
    ::setenv(env::kNvmlLibrary, DDPRUN_FAKE_NVML, 1);
    ::setenv("FAKE_NVML_LIST", list_file().c_str(), 1);
    set_list(first_list);
    memory = GpuMemory::open(io, helper_program("ddprun-gpus"));
    REQUIRE(memory);
  }
  ~Node() { ::unsetenv(env::kNvmlLibrary); }

  // The file changes in one step, as NVML's own answers do.
  void set_list(const std::string& text) const {
    ::unlink((list_file() + ".read").c_str());
    std::ofstream(list_file() + ".new") << text;
    REQUIRE(std::rename((list_file() + ".new").c_str(), list_file().c_str()) == 0);
  }
  void wait(milliseconds limit) {
    note.reset();
    memory->when_freed(limit, [this](std::string text) { note = std::move(text); });
  }
  bool run_until_noted() {
    const auto deadline = Deadline::after(seconds{30});
    while (!note && !deadline.expired()) {
      io.restart();
      io.run_one_for(milliseconds{100});
    }
    return note.has_value();
  }

  // Waits until NVML has been read. The answer isn't looked at before the io context runs.
  void await_answer() const {
    const auto deadline = Deadline::after(seconds{30});
    while (::access((list_file() + ".read").c_str(), F_OK) != 0 && !deadline.expired()) {
      ::usleep(1000);
    }
    REQUIRE_FALSE(deadline.expired());
  }

  boost::asio::io_context io;
  std::shared_ptr<GpuMemory> memory;
  std::optional<std::string> note;

 private:
  std::string list_file() const { return folder_.path() + "/list"; }
  test::TempDirectory folder_;
};

}  // namespace

TEST_CASE("GpuMemory: no driver, nothing to wait for") {
  boost::asio::io_context io;
  if (::access("/dev/nvidiactl", F_OK) == 0) DDPRUN_SKIP("this machine has an NVIDIA driver");
  CHECK_FALSE(GpuMemory::open(io, helper_program("ddprun-gpus")));
}

TEST_CASE("count_gpus: NVML's number, none without NVML, and an end where the driver hangs") {
  const std::string program = helper_program("ddprun-gpus");
  Node node("");
  CHECK(count_gpus(program, Deadline::after(seconds{30})) == 2);
  node.set_list("broken");
  CHECK(count_gpus(program, Deadline::after(seconds{30})) == std::nullopt);
  node.set_list("hang at once");
  std::string text;
  CHECK(test::code_of([&] { count_gpus(program, Deadline::after(milliseconds{300})); }, &text) ==
        ErrorCode::kTimeout);
  CHECK_THAT(text, Contains("NVIDIA driver"));
}

TEST_CASE("GpuMemory: free memory is seen at once, earlier processes don't count") {
  Node node("0 2147483599 5\n");
  node.wait(seconds{20});
  const auto begin = Clock::now();
  REQUIRE(node.run_until_noted());
  CHECK(*node.note == "");
  CHECK(Clock::now() - begin < seconds{10});
}

TEST_CASE("GpuMemory: a process younger than the agent was not there before") {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  Node node("0 " + std::to_string(child) + " 5\n");
  node.wait(seconds{20});
  REQUIRE(node.run_until_noted());
  // The process lives, so it is named.
  CHECK_THAT(*node.note, Contains("by pid " + std::to_string(child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  node.wait(milliseconds{100});
  REQUIRE(node.run_until_noted());
  CHECK_THAT(*node.note, Contains("after their end"));
}

TEST_CASE("GpuMemory: the sweep after a dead warden leaves ddprun-gpus alone") {
  Node node("");
  node.wait(seconds{20});
  REQUIRE(node.run_until_noted());
  bool swept = false;
  const auto sweep = OrphanSweep::start(node.io, [&] { swept = true; });
  const auto deadline = Deadline::after(seconds{30});
  while (!swept && !deadline.expired()) {
    node.io.restart();
    node.io.run_one_for(milliseconds{100});
  }
  REQUIRE(swept);
  node.set_list(kDead);
  node.wait(milliseconds{100});
  REQUIRE(node.run_until_noted());
  CHECK_THAT(*node.note, Contains("after their end"));
}

TEST_CASE("GpuMemory: dead processes' memory is waited for") {
  Node node("");
  node.wait(seconds{20});
  REQUIRE(node.run_until_noted());  // the first list is there now
  node.set_list(kDead);
  node.wait(seconds{20});
  node.io.restart();
  node.io.run_for(milliseconds{100});
  CHECK_FALSE(node.note);
  node.set_list("");
  REQUIRE(node.run_until_noted());
  CHECK(*node.note == "");
}

TEST_CASE("GpuMemory: it says who holds what after the limit") {
  Node node("");
  node.wait(seconds{20});
  REQUIRE(node.run_until_noted());
  node.set_list(kDead);
  node.wait(milliseconds{150});
  REQUIRE(node.run_until_noted());
  CHECK_THAT(*node.note, Contains("GPU 1: 2.0 GiB by pid 2147483600"));
  CHECK_THAT(*node.note, Contains("0.15 s after their end"));
}

TEST_CASE("GpuMemory: a process that lives is named, not waited for") {
  Node node("");
  node.wait(seconds{20});
  REQUIRE(node.run_until_noted());
  node.set_list("0 " + std::to_string(::getppid()) + " 1073741824\n");
  node.wait(seconds{20});
  REQUIRE(node.run_until_noted());
  CHECK_THAT(*node.note, Contains("GPU 0: 1.0 GiB by pid " + std::to_string(::getppid())));
}

TEST_CASE("GpuMemory: a driver that hangs costs the limit, one that breaks costs nothing") {
  Node hanging("hang");
  hanging.wait(milliseconds{150});
  REQUIRE(hanging.run_until_noted());
  CHECK_THAT(*hanging.note, Contains("NVML did not answer"));
  Node broken("broken");
  broken.wait(seconds{20});
  const auto begin = Clock::now();
  REQUIRE(broken.run_until_noted());
  CHECK(*broken.note == "");
  broken.wait(seconds{20});
  REQUIRE(broken.run_until_noted());
  CHECK(Clock::now() - begin < seconds{10});
}

TEST_CASE("GpuMemory: a driver that hung is not waited for again until it answers a new helper") {
  Node node("");
  node.wait(seconds{20});
  REQUIRE(node.run_until_noted());
  node.set_list("hang");
  node.wait(milliseconds{150});
  REQUIRE(node.run_until_noted());
  CHECK_THAT(*node.note, Contains("NVML did not answer"));
  node.set_list(kDead);  // too late for the helper that has been started since
  const auto begin = Clock::now();
  node.wait(seconds{20});
  REQUIRE(node.run_until_noted());
  CHECK(*node.note == "");
  CHECK(Clock::now() - begin < seconds{10});
  for (int tries = 0; tries < 20 && node.note->empty(); ++tries) {
    node.io.restart();
    node.io.run_for(milliseconds{500});  // waits for the new helper's answer
    node.wait(milliseconds{300});
    REQUIRE(node.run_until_noted());
  }
  CHECK_THAT(*node.note, Contains("after their end"));
}

TEST_CASE("GpuMemory: an answer that was asked for in an earlier wait is not one of now") {
  Node node("");
  node.wait(seconds{20});
  REQUIRE(node.run_until_noted());
  node.set_list("");
  node.wait(seconds{20});
  node.memory->give_up();  // its answer, that all memory is free, is under way
  node.await_answer();
  node.set_list(kDead);
  node.wait(milliseconds{300});
  REQUIRE(node.run_until_noted());
  CHECK_THAT(*node.note, Contains("after their end"));
}

TEST_CASE("GpuMemory: a wait that is given up is over at once") {
  Node node("hang");
  node.wait(seconds{20});
  node.memory->give_up();
  REQUIRE(node.note);
  CHECK(*node.note == "");
}
