// SPDX-License-Identifier: Apache-2.0
// Stopping: requests, force, and the processes that are gone when all_gone is said.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <fstream>

#include "agent/warden_process.h"
#include "common/clock.h"
#include "common/socket.h"
#include "common/text.h"
#include "tests/agent/group_fixture.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

bool has_ended(const UniqueFd& pidfd) { return is_ready(pidfd.get(), POLLIN); }

// The number after `mark` in the output.
pid_t pid_after(const std::string& out, const std::string& mark) {
  const auto at = out.find(mark);
  REQUIRE(at != std::string::npos);
  return std::stoi(out.substr(at + mark.size()));
}

TEST_CASE("WorkerGroup: stop() lets workers end by themselves, and reports no victim", "[proc]") {
  GroupFixture run;
  const std::string script =
      "trap 'echo saved; exit 3' TERM; echo up; while :; do sleep 0.01; done";
  run.start_shells({script, script});
  REQUIRE(run.wait_output("[0] up"));
  REQUIRE(run.wait_output("[1] up"));
  const auto begin = Clock::now();
  REQUIRE(run.stop_and_wait());
  CHECK(Clock::now() - begin < seconds(10));
  CHECK(run.failures.empty());
  CHECK(run.num_all_succeeded == 0);
  CHECK(run.out().find("[0] saved") != std::string::npos);
  CHECK(run.out().find("[1] saved") != std::string::npos);
}

TEST_CASE("WorkerGroup: a worker that ignores SIGTERM is killed after the grace", "[proc]") {
  GroupFixture run;
  run.start_shells({"trap '' TERM; echo up; while :; do sleep 0.01; done"});
  REQUIRE(run.wait_output("up"));
  const auto begin = Clock::now();
  REQUIRE(run.stop_and_wait(milliseconds(150)));
  const auto took = Clock::now() - begin;
  CHECK(took >= milliseconds(150));
  CHECK(took < seconds(10));
}

TEST_CASE("WorkerGroup: a second stop() with a shorter grace shortens the wait, a longer doesn't",
          "[proc]") {
  GroupFixture run;
  run.start_shells({"trap '' TERM; echo up; while :; do sleep 0.01; done"});
  REQUIRE(run.wait_output("up"));
  const auto begin = Clock::now();
  run.group->stop(seconds(600));
  run.group->stop(milliseconds(50));
  run.group->stop(seconds(600));
  REQUIRE(run.wait_for([&] { return run.num_all_gone > 0; }));
  CHECK(Clock::now() - begin < seconds(10));
  run.group->stop(seconds(1));  // there is nothing left to do
  CHECK(run.num_all_gone == 1);
}

TEST_CASE("WorkerGroup: a stopped worker (SIGSTOP) is continued to be stopped", "[proc]") {
  GroupFixture run;
  run.start_shells({"trap 'echo saved; exit 0' TERM; echo up; kill -STOP $$; sleep 100"});
  REQUIRE(run.wait_output("up"));
  REQUIRE(run.stop_and_wait());
  CHECK(run.out().find("saved") != std::string::npos);
}

TEST_CASE("WorkerGroup: stop() during the spawn of many leaves nobody", "[proc]") {
  GroupFixture run;
  run.start_shells(std::vector<std::string>(100, "exec sleep 100"));
  for (int i = 0; i < GENERATE(0, 1, 5, 20); ++i) run.io.run_one_for(milliseconds(100));
  REQUIRE(run.stop_and_wait());
  CHECK(run.failures.empty());
  CHECK(run.num_all_gone == 1);
}

TEST_CASE("WorkerGroup: stop() before start() ends at once, and start() then does nothing",
          "[proc]") {
  GroupFixture run;
  run.make_group();
  run.group->stop(seconds(1));
  CHECK(run.num_all_gone == 0);  // never from inside a call of the group
  run.group->start({GroupFixture::shell("exit 1")});
  REQUIRE(run.wait_for([&] { return run.num_all_gone > 0; }));
  CHECK(run.failures.empty());
}

TEST_CASE("WorkerGroup: an exec that fails while others start is reported, and stop() works",
          "[proc]") {
  GroupFixture run;
  std::vector<WorkerSpec> specs(3, GroupFixture::shell("exec sleep 100"));
  specs[1].argv = {"/no/such/program"};
  run.start(std::move(specs));
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  CHECK(run.failures[0].global_rank == 1);
  REQUIRE(run.stop_and_wait());
  CHECK(run.failures.size() == 1);
  CHECK(run.num_all_running == 0);
}

TEST_CASE("WorkerGroup: workers that fail on their own after the first are reported after it",
          "[proc]") {
  GroupFixture run;
  run.start_shells({"exit 5", "exec sleep 100"});
  REQUIRE(run.wait_for([&] { return run.failures.size() == 1 && run.group->pids().at(1) != 0; }));
  run.kill_workers();
  REQUIRE(run.wait_for([&] { return run.failures.size() == 2; }));
  CHECK(run.failures[0].exit_code == 5);
  CHECK(run.failures[1].signal_number == SIGKILL);
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("WorkerGroup: processes that a worker left in other sessions are gone with all_gone",
          "[proc]") {
  GroupFixture run;
  run.start_shells(
      {"(setsid sh -c 'trap \"\" TERM; echo daemon $$; while :; do sleep 0.01; done' &); exit 0"});
  REQUIRE(run.wait_output("daemon "));
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  const UniqueFd daemon = open_pidfd(pid_after(run.out(), "daemon "));
  CHECK_FALSE(has_ended(daemon));
  REQUIRE(run.stop_and_wait(milliseconds(50)));
  CHECK(has_ended(daemon));
}

TEST_CASE("WorkerGroup: a child of a wrapper that died at SIGTERM has the grace too", "[proc]") {
  GroupFixture run;
  // The shell goes at once. Its child, in the same group, needs a moment.
  run.start_shells(
      {"sh -c 'trap \"sleep 0.1; echo saved; exit\" TERM; echo up; "
       "while :; do sleep 0.01; done' & wait"});
  REQUIRE(run.wait_output("up"));
  REQUIRE(run.stop_and_wait());
  CHECK(run.out().find("saved") != std::string::npos);
}

// A data loader, recognised because it runs its parent's program. The parent's trap is to be set
// before it: a test goes on when the loader is up.
const std::string kLoader =
    "(trap 'echo loader asked; exit' TERM; echo up; while :; do sleep 0.01; done) & ";

TEST_CASE("WorkerGroup: a worker that handles the signal has its data loaders to its end",
          "[proc]") {
  const std::string worker =
      "trap 'sleep 0.1; echo saved; exit' TERM; " + kLoader + "while :; do wait; done";
  auto spec = GroupFixture::shell(GENERATE(false, true) ? "sh -c \"$SELF\"; :" : worker);
  spec.environment.push_back("SELF=" + worker);
  GroupFixture run;
  run.start({spec});
  REQUIRE(run.wait_output("up"));
  const auto begin = Clock::now();
  REQUIRE(run.stop_and_wait());
  CHECK(Clock::now() - begin < kPatience / 2);
  const std::string out = run.out();
  INFO(out);
  REQUIRE(out.find("loader asked") != std::string::npos);
  CHECK(out.find("saved") < out.find("loader asked"));
}

TEST_CASE("WorkerGroup: a process that a worker starts at the signal, to save, is let alone",
          "[proc]") {
  GroupFixture run;
  run.start_shells(
      {"trap 'sleep 0.2 && echo saved; exit' TERM; " + kLoader + "while :; do wait; done"});
  REQUIRE(run.wait_output("up"));
  REQUIRE(run.stop_and_wait());
  CHECK(run.out().find("saved") != std::string::npos);
}

TEST_CASE(
    "WorkerGroup: a worker that waits for its data loaders gets their end after half the grace",
    "[proc]") {
  GroupFixture run;
  run.start_shells(
      {"trap 'echo waiting' TERM; " + kLoader + "while kill -0 $!; do wait; done; echo over"});
  REQUIRE(run.wait_output("up"));
  const auto begin = Clock::now();
  REQUIRE(run.stop_and_wait(seconds(2)));
  CHECK(Clock::now() - begin >= seconds(1));
  CHECK(run.out().find("over") != std::string::npos);
}

TEST_CASE("WorkerGroup: stop() with another signal sends that one", "[proc]") {
  GroupFixture run;
  run.start_shells(
      {"trap 'echo terminated; exit' TERM; trap 'echo saved; exit 3' INT; echo up; "
       "while :; do sleep 0.01; done"});
  REQUIRE(run.wait_output("up"));
  REQUIRE(run.stop_and_wait(kPatience, SIGINT));
  CHECK(run.out().find("saved") != std::string::npos);
  CHECK(run.out().find("terminated") == std::string::npos);
}

TEST_CASE("WorkerGroup: a wrapper's child that ignores the signal gets SIGTERM when it has gone",
          "[proc]") {
  GroupFixture run;
  // A shell starts the command before "&" with SIGINT ignored.
  run.start_shells(
      {"sh -c 'trap \"echo saved; exit\" TERM; echo up; while :; do sleep 0.01; done' & wait"});
  REQUIRE(run.wait_output("up"));
  const auto begin = Clock::now();
  REQUIRE(run.stop_and_wait(kPatience, SIGINT));
  CHECK(Clock::now() - begin < kPatience / 2);
  CHECK(run.out().find("saved") != std::string::npos);
}

TEST_CASE("WorkerGroup: a wrapper's child that is about to end by the signal is let alone",
          "[proc]") {
  GroupFixture run;
  run.start_shells(
      {"sh -c 'trap \"echo terminated; exit\" TERM; "
       "trap \"sleep 0.2; echo saved; exit\" USR2; "
       "echo up; while :; do sleep 0.01; done' & wait"});
  REQUIRE(run.wait_output("up"));
  REQUIRE(run.stop_and_wait(kPatience, SIGUSR2));
  CHECK(run.out().find("saved") != std::string::npos);
  CHECK(run.out().find("terminated") == std::string::npos);
}

TEST_CASE("WorkerGroup: a tree that forks faster than it is looked at is killed", "[proc]") {
  GroupFixture run;
  // Each process starts its successor in a session of its own, then ends.
  const std::string script =
      "f() { (setsid sh -c \"$SELF\" &) ; }; trap '' TERM; echo gen; f; exit 0";
  auto spec = GroupFixture::shell(script);
  spec.environment.push_back("SELF=" + script);
  run.start({spec});
  REQUIRE(run.wait_for([&] {
    const std::string out = run.out();
    return std::count(out.begin(), out.end(), '\n') > 20;
  }));
  REQUIRE(run.stop_and_wait(milliseconds(20)));
}

TEST_CASE("WorkerGroup: the destructor has everyone killed", "[proc]") {
  GroupFixture run;
  run.start_shells(
      {"(setsid sh -c 'trap \"\" TERM; echo daemon $$; exec sleep 100' &);"
       "trap '' TERM; echo worker $$; while :; do sleep 0.01; done"});
  REQUIRE(run.wait_output("daemon "));
  REQUIRE(run.wait_output("worker "));
  const UniqueFd daemon = open_pidfd(pid_after(run.out(), "daemon "));
  const UniqueFd worker = open_pidfd(pid_after(run.out(), "worker "));
  run.group.reset();
  CHECK(run.wait_for([&] { return has_ended(daemon) && has_ended(worker); }));
  CHECK(run.wait_for([] { return helper_processes().empty(); }));
}

TEST_CASE("WorkerGroup: its owner may destroy it from inside an event", "[proc]") {
  boost::asio::io_context io;
  Console console(io, ConsoleOptions{});
  std::unique_ptr<WorkerGroup> group;
  bool failed = false;
  WorkerGroupEvents events;
  events.worker_failed = [&](const membership::WorkerFailure&, Clock::time_point) {
    failed = true;
    group.reset();
  };
  WorkerGroupOptions options;
  options.several_workers = true;
  group = std::make_unique<WorkerGroup>(io, console, options, 0, events);
  group->start({GroupFixture::shell("exit 1"), GroupFixture::shell("exit 1")});
  const auto deadline = Deadline::after(kPatience);
  while (!helper_processes().empty() && !deadline.expired()) {
    io.restart();
    io.run_one_for(milliseconds(100));
  }
  CHECK(failed);
  CHECK(helper_processes().empty());
}

TEST_CASE("WorkerGroup: a killed warden takes its workers along and is reported", "[proc]") {
  GroupFixture run;
  const std::string script =
      "(setsid sh -c 'trap \"\" TERM; echo daemon $$; exec sleep 100' &);"
      "echo worker $$; while :; do sleep 0.01; done";
  run.start_shells({script, script});
  REQUIRE(run.wait_for([&] {
    const std::string out = run.out();
    return std::count(out.begin(), out.end(), '\n') == 4;
  }));
  const std::string out = run.out();
  std::vector<UniqueFd> all;
  for (const char* mark : {"[0] daemon ", "[1] daemon ", "[0] worker ", "[1] worker "}) {
    all.push_back(open_pidfd(pid_after(out, mark)));
  }
  REQUIRE(helper_processes().size() == 1);
  ::kill(helper_processes().front(), SIGKILL);
  REQUIRE(run.wait_for([&] { return run.failures.size() == 2; }));
  for (const auto& failure : run.failures) {
    CHECK(failure.signal_number == SIGKILL);
    INFO(failure.note);
    CHECK(failure.note.find("warden process") != std::string::npos);
    CHECK(failure.note.find("SIGKILL") != std::string::npos);
  }
  REQUIRE(run.stop_and_wait());
  for (const UniqueFd& pidfd : all) CHECK(has_ended(pidfd));
}

TEST_CASE("WorkerGroup: a stopped warden (SIGSTOP) is continued to stop its workers", "[proc]") {
  GroupFixture run;
  run.start_shells({"trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.01; done"});
  REQUIRE(run.wait_output("up"));
  REQUIRE(helper_processes().size() == 1);
  REQUIRE(::kill(helper_processes().front(), SIGSTOP) == 0);
  REQUIRE(run.stop_and_wait());
  CHECK(run.out().find("saved") != std::string::npos);
}

TEST_CASE("WorkerGroup: a stopped warden is continued by the destructor, too", "[proc]") {
  GroupFixture run;
  run.start_shells({"echo up $$; exec sleep 1000"});
  REQUIRE(run.wait_output("up"));
  const UniqueFd worker = open_pidfd(pid_after(run.out(), "up "));
  REQUIRE(helper_processes().size() == 1);
  REQUIRE(::kill(helper_processes().front(), SIGSTOP) == 0);
  run.group.reset();
  CHECK(run.wait_for([&] { return has_ended(worker); }));
}

TEST_CASE("WorkerGroup: a warden killed while its workers are being stopped hangs nothing",
          "[proc]") {
  GroupFixture run;
  run.start_shells({"trap '' TERM; echo up; while :; do sleep 0.01; done"});
  REQUIRE(run.wait_output("up"));
  run.group->stop(seconds(600));
  ::kill(helper_processes().front(), SIGKILL);
  REQUIRE(run.wait_for([&] { return run.num_all_gone > 0; }));
  CHECK(run.failures.empty());
}

TEST_CASE("WorkerGroup: a failure before stop() is reported, though its report comes after it",
          "[proc]") {
  GroupFixture run;
  const test::TempDirectory directory;
  const std::string go = directory.path() + "/go";
  run.start_shells({"echo up; until [ -e " + go + " ]; do sleep 0.01; done; exit 3"});
  REQUIRE(run.wait_output("up"));
  const auto before = Clock::now();
  const pid_t warden = helper_processes().front();
  std::ofstream(go).put('1');
  // The warden reaps it. The report waits in the socket, because nobody serves the io context.
  const std::string children = concat("/proc/", warden, "/task/", warden, "/children");
  const auto deadline = Deadline::after(kPatience);
  for (int child = 0; std::ifstream(children) >> child;) REQUIRE_FALSE(deadline.expired());
  run.group->stop(seconds(10));
  REQUIRE(run.wait_for([&] { return run.num_all_gone > 0; }));
  REQUIRE(run.failures.size() == 1);
  CHECK(run.failures.front().exit_code == 3);
  CHECK(run.failed_at >= before);
  CHECK(run.failed_at <= Clock::now());
}

TEST_CASE("WorkerGroup: workers whose lease isn't renewed are killed by the warden", "[proc]") {
  using std::chrono::milliseconds;
  GroupFixture run;
  run.start_shells({"trap '' TERM; echo up; while :; do sleep 0.01; done"});
  REQUIRE(run.wait_output("up"));
  run.group->lease(Clock::now() + seconds(1));
  run.group->lease(std::nullopt);
  run.group->lease(Clock::now() + seconds(600));
  CHECK_FALSE(run.wait_for_at_most(milliseconds(1200), [&] { return run.num_fenced > 0; }));
  run.group->lease(Clock::now() + milliseconds(50));
  REQUIRE(run.wait_for([&] { return run.num_all_gone > 0; }));
  CHECK(run.num_fenced == 1);
  CHECK(run.failures.empty());  // nobody's fault
}

TEST_CASE("WorkerGroup: a lease that runs out cuts a stop's grace short", "[proc]") {
  GroupFixture run;
  run.start_shells({"trap '' TERM; echo up; while :; do sleep 0.01; done"});
  REQUIRE(run.wait_output("up"));
  run.group->lease(Clock::now() + std::chrono::milliseconds(50));
  run.group->stop(seconds(600));
  REQUIRE(run.wait_for([&] { return run.num_all_gone > 0; }));
  CHECK(run.num_fenced == 0);  // its owner had stopped it before
}

TEST_CASE("WorkerGroup: a hundred rounds leak no descriptor", "[proc]") {
  GroupFixture run;
  const auto num_open = [] {
    int count = 0;
    for (int fd = 0; fd < 1000; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  const auto round = [&] {
    run.num_all_gone = 0;
    run.failures.clear();
    run.start_shells({"exit 1", "exec sleep 100"});
    REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
    REQUIRE(run.stop_and_wait());
    run.group.reset();
  };
  round();
  const int before = num_open();
  for (int i = 0; i < 100; ++i) round();
  CHECK(num_open() == before);
}

}  // namespace
}  // namespace ddprun::agent
