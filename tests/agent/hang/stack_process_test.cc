// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/stack_process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/hang/hang_monitor.h"
#include "agent/hang/stacks/stacks.h"
#include "common/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

TEST_CASE("parse_stacks: Python's frames come before the native ones, a cut one is left out") {
  const ProcessStacks stacks = parse_stacks(
      "pid 7\nnative read (libc.so.6)\nnative main\npid 8\nnote can't be traced\n"
      "pid 7\npython load (train.py:12)\npython <module> (train.py:20)\nnonsense\nnative cut o");
  REQUIRE(stacks.size() == 2);
  CHECK(stacks.at(7).python ==
        std::vector<std::string>{"load (train.py:12)", "<module> (train.py:20)"});
  CHECK(stacks.at(7).native == std::vector<std::string>{"read (libc.so.6)", "main"});
  CHECK(stacks.at(8).note == "can't be traced");
  CHECK_FALSE(stacks.at(8).has_debugger);
  CHECK(parse_stacks("pid 9\ndebugger debugpy\n").at(9).has_debugger);
  CHECK(parse_stacks("").empty());
}

TEST_CASE("parse_py_spy: the main thread's frames") {
  constexpr char kDump[] =
      "Process 71: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n"
      "Thread 72 (idle): \"pin_memory\"\n    wait (threading.py:324)\n"
      "Thread 71 (idle): \"MainThread\"\n    load (train.py:12)\n    <module> (train.py:20)\n"
      "Thread 73 (active): \"other\"\n    run (threading.py:975)\n";
  CHECK(parse_py_spy(kDump, 8) ==
        std::vector<std::string>{"load (train.py:12)", "<module> (train.py:20)"});
  CHECK(parse_py_spy(kDump, 1).size() == 1);
  CHECK(parse_py_spy("Permission denied\n", 8).empty());
}

TEST_CASE("has_debugpy: a library of its tracer is in the process' memory") {
  const test::TempDirectory directory;
  const std::string path = directory.path("pydevd_cython.so");
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(::ftruncate(file.get(), 1) == 0);
  CHECK_FALSE(has_debugpy(::getpid()));
  void* const library = ::mmap(nullptr, 1, PROT_READ, MAP_PRIVATE, file.get(), 0);
  REQUIRE(library != MAP_FAILED);
  CHECK(has_debugpy(::getpid()));
  ::munmap(library, 1);
}

std::vector<membership::RankStepTime> times(std::chrono::microseconds own) {
  return {{0, 50ms, 10ms}, {1, 50ms, own}};
}

TEST_CASE("StepTimeReport: says times at first, then when one changed by a quarter, every 10 s") {
  StepTimeReport report;
  Clock::time_point now{1h};
  CHECK_FALSE(report.due({}, now));
  CHECK(report.due(times(10ms), now));
  CHECK_FALSE(report.due(times(40ms), now + 9s));   // too soon
  CHECK_FALSE(report.due(times(11ms), now + 10s));  // too little
  CHECK(report.due(times(40ms), now + 11s));
  CHECK_FALSE(report.due(times(80ms), now + 20s));
  CHECK(report.due(times(80ms), now + 21s));
}

TEST_CASE("StepTimeReport: microseconds are no change") {
  StepTimeReport report;
  CHECK(report.due(times(10us), Clock::time_point{1h}));
  CHECK_FALSE(report.due(times(400us), Clock::time_point{2h}));
}

}  // namespace
}  // namespace ddprun::agent
