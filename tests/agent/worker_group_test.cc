// SPDX-License-Identifier: Apache-2.0
// Start, exit, failure: real processes under a real warden.
#include "agent/worker_group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include "agent/binding/binding_plan.h"
#include "agent/warden_process.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/socket.h"
#include "tests/agent/group_fixture.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

using ddprun::test::Contains;

TEST_CASE("WorkerGroup: workers that exit with 0 are all running, then all succeeded", "[proc]") {
  GroupFixture run;
  run.start_shells({"exit 0", "exit 0", "exit 0"});
  CHECK(run.num_all_running == 0);  // never from inside start()
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  CHECK(run.num_all_running == 1);
  CHECK(run.failures.empty());
  CHECK(run.group->pids() == std::vector<pid_t>(3, 0));
  CHECK(std::ranges::count(run.group->started(), 0) ==
        0);  // for events: who was quick has one, too
  REQUIRE(run.stop_and_wait());
  CHECK(run.num_all_succeeded == 1);
  CHECK(run.num_all_gone == 1);
  CHECK(helper_processes().empty());
}

// The state letter in /proc/PID/stat.
char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  return name_end == std::string::npos ? '?' : line[name_end + 2];
}

TEST_CASE("WorkerGroup: the earliest of deaths that the warden sees at once is the first failure",
          "[proc]") {
  GroupFixture run;
  constexpr int kNumWorkers = 4;
  const std::string script = "echo pid $$ .; exec sleep 600";
  run.start_shells(std::vector<std::string>(kNumWorkers, script));
  REQUIRE(run.wait_for([&] {
    const std::string text = run.out();
    return std::count(text.begin(), text.end(), '.') == kNumWorkers;
  }));
  std::vector<pid_t> pids(kNumWorkers);
  for (int rank = 0; rank < kNumWorkers; ++rank) {
    const std::string text = run.out();
    const std::string label = "[" + std::to_string(rank) + "] pid ";
    REQUIRE(text.find(label) != std::string::npos);
    pids[rank] = static_cast<pid_t>(std::stol(text.substr(text.find(label) + label.size())));
  }
  const std::vector<pid_t> wardens = helper_processes();
  REQUIRE(wardens.size() == 1);
  REQUIRE(::kill(wardens.front(), SIGSTOP) == 0);
  REQUIRE(run.wait_for([&] { return state_of(wardens.front()) == 'T'; }));
  for (const int rank : {2, 3, 0, 1}) {
    const UniqueFd death = open_pidfd(pids[rank]);
    REQUIRE(::kill(pids[rank], rank == 2 ? SIGABRT : SIGKILL) == 0);
    REQUIRE(wait_ready(death.get(), POLLIN, Deadline::after(kPatience)));
  }
  REQUIRE(::kill(wardens.front(), SIGCONT) == 0);
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  CHECK(run.failures.front().global_rank == 2);
  CHECK(run.failures.front().signal_number == SIGABRT);
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("WorkerGroup: an exit code is reported with rank, pid, node, host and last lines",
          "[proc]") {
  GroupFixture run;
  run.start_shells(
      {"echo pid $$; echo one; echo two >&2; sleep 0.01; printf three; exit 7", "exec sleep 100"});
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  const auto& failure = run.failures.front();
  CHECK(failure.global_rank == 0);
  CHECK(failure.local_rank == 0);
  CHECK(failure.node_rank == 3);
  CHECK(failure.exit_code == 7);
  CHECK(failure.signal_number == 0);
  CHECK_FALSE(failure.host.empty());
  CHECK(failure.note.empty());
  REQUIRE(failure.last_lines.size() == 4);
  CHECK(std::count(failure.last_lines.begin(), failure.last_lines.end(),
                   "pid " + std::to_string(failure.pid)) == 1);
  CHECK(std::count(failure.last_lines.begin(), failure.last_lines.end(), "two") == 1);
  CHECK(failure.last_lines.back() == "three");
  REQUIRE(run.stop_and_wait());
  CHECK(run.failures.size() == 1);  // the other worker is a victim
}

TEST_CASE("WorkerGroup: a worker may use the CPUs that it is given, none that it can have is said",
          "[proc]") {
  const std::string which = "grep Cpus_allowed_list /proc/self/status";
  const CpuSet one{allowed_cpus().cpus().front()};
  GroupFixture bound;
  bound.options.cpus = {one};
  bound.start_shells({which});
  REQUIRE(bound.wait_for([&] { return bound.num_all_succeeded == 1; }));
  REQUIRE(bound.stop_and_wait());
  CHECK_THAT(bound.out(), Contains("Cpus_allowed_list:\t" + to_text(one) + "\n"));
  GroupFixture impossible;
  impossible.options.cpus = {CpuSet{CpuSet::kMostCpus - 1}};
  impossible.start_shells({which});
  REQUIRE(impossible.wait_for([&] { return !impossible.failures.empty(); }));
  CHECK(impossible.failures.front().exit_code == kExitNotExecutable);
  CHECK_THAT(impossible.failures.front().note, Contains("could not be bound to CPUs 1023"));
  REQUIRE(impossible.stop_and_wait());
}

TEST_CASE("WorkerGroup: death by a signal is reported as such", "[proc]") {
  const int number = GENERATE(SIGKILL, SIGSEGV, SIGTERM, SIGABRT, SIGUSR1);
  GroupFixture run;
  run.start_shells({"ulimit -c 0; kill -" + std::to_string(number) + " $$; exec sleep 100"});
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  CHECK(run.failures.front().signal_number == number);
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("WorkerGroup: failures come in the order in which the workers failed", "[proc]") {
  const test::TempDirectory directory;
  GroupFixture run;
  // Each worker waits for the end of the process that a file names, which is the one before.
  const std::string base = directory.path("pid");
  const auto fail_as = [&](int place) {
    const std::string file = base + std::to_string(place);
    return "echo $$ >" + file + ".new; mv " + file + ".new " + file + "; exit 1";
  };
  const auto after = [&](int place) {
    const std::string before = base + std::to_string(place - 1);
    return "until test -e " + before + "; do sleep 0.005; done; while kill -0 $(cat " + before +
           ") 2>/dev/null; do sleep 0.005; done; " + fail_as(place);
  };
  run.start_shells({after(1), after(2), fail_as(0)});
  REQUIRE(run.wait_for([&] { return run.failures.size() == 3; }));
  CHECK(run.failures[0].global_rank == 2);
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("WorkerGroup: 256 workers that exit at once lose no exit", "[proc]") {
  GroupFixture run;
  run.start_shells(std::vector<std::string>(256, "echo hello; exit 0"));
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  CHECK(run.num_all_running == 1);
  REQUIRE(run.stop_and_wait());
  const std::string out = run.out();
  CHECK(std::count(out.begin(), out.end(), '\n') == 256);
}

TEST_CASE("WorkerGroup: 256 workers killed at the same moment are 256 failures", "[proc]") {
  GroupFixture run;
  run.start_shells(std::vector<std::string>(256, "exec sleep 100"));
  REQUIRE(run.wait_for([&] { return run.num_all_running > 0; }));
  run.kill_workers();
  REQUIRE(run.wait_for([&] { return run.failures.size() == 256; }));
  std::set<int> ranks;
  for (const auto& failure : run.failures) {
    CHECK(failure.signal_number == SIGKILL);
    ranks.insert(failure.global_rank);
  }
  CHECK(ranks.size() == 256);
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("WorkerGroup: a file that is missing is 127, one that can't be executed 126", "[proc]") {
  const test::TempDirectory directory;
  GroupFixture run;
  const std::string base = directory.path("program");
  std::ofstream(base + ".plain") << "no program\n";
  std::ofstream(base + ".script") << "#!/no/such/interpreter\n";
  std::ofstream(base + ".junk") << "\x01\x02 junk\n";
  REQUIRE(::chmod((base + ".script").c_str(), 0755) == 0);
  REQUIRE(::chmod((base + ".junk").c_str(), 0755) == 0);
  std::vector<WorkerSpec> specs(5);
  specs[0].argv = {base + ".missing"};
  specs[1].argv = {base + ".plain"};
  specs[2].argv = {base + ".script"};
  specs[3].argv = {base + ".junk"};
  specs[4].argv = {"/bin/true"};
  specs[4].working_directory = "/no/such/directory";
  run.start(std::move(specs));
  REQUIRE(run.wait_for([&] { return run.failures.size() == 5; }));
  CHECK(run.num_all_running == 0);
  const int codes[] = {127, 126, 126, 126, 127};
  const char* notes[] = {".missing: No such file or directory", ".plain: Permission denied",
                         "the interpreter in its first line", ".junk: Exec format error",
                         "/no/such/directory"};
  for (const auto& failure : run.failures) {
    INFO(failure.note);
    CHECK(failure.exit_code == codes[failure.global_rank]);
    CHECK_THAT(failure.note, Contains(notes[failure.global_rank]));
    CHECK(failure.pid == 0);
  }
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("WorkerGroup: the environment is exactly what was given", "[proc]") {
  ::setenv("DDPRUN_TEST_LEAK", "1", 1);
  GroupFixture run;
  std::vector<WorkerSpec> specs(1);
  specs[0].argv = {"/usr/bin/env", "-0"};
  const std::string big(200'000 - 10, 'x');  // one string may be 128 KiB; the sum is larger
  specs[0].environment = {"B=2",
                          "A=1",
                          "EMPTY=",
                          "LINES=a\nb",
                          "X=" + big.substr(0, 100'000),
                          "Y=" + big.substr(0, 100'000)};
  std::string expected;
  for (const auto& variable : specs[0].environment) expected += variable + '\0';
  run.options.several_workers = false;
  run.start(std::move(specs));
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  CHECK(run.out() == expected);
}

TEST_CASE("WorkerGroup: each worker has a session of its own, default signals, three descriptors",
          "[proc]") {
  // Signal settings that a launcher changed for itself must not reach workers.
  ::signal(SIGUSR2, SIG_IGN);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  const UniqueFd leak(::open("/dev/null", O_RDONLY));  // not close-on-exec
  GroupFixture run;
  const std::string script =
      "set -- $(cat /proc/self/stat); echo session $6 parent $4 shell $$;"
      "grep -E 'SigBlk|SigIgn' /proc/self/status; cd /proc/$$/fd; echo * fds";
  run.start_shells({script, script});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  sigprocmask(SIG_SETMASK, &before, nullptr);
  ::signal(SIGUSR2, SIG_DFL);
  const std::string out = run.out();
  INFO(out);
  std::set<std::string> sessions;
  for (const char* rank : {"[0] ", "[1] "}) {
    const auto at = out.find(std::string(rank) + "session ");
    REQUIRE(at != std::string::npos);
    const std::string line = out.substr(at + 12, out.find('\n', at) - at - 12);
    const std::string session = line.substr(0, line.find(' '));
    CHECK_THAT(line, Contains("shell " + session));  // the session's leader is the worker
    sessions.insert(session);
    // The shell has 3 because it reads the folder.
    CHECK_THAT(out, Contains(std::string(rank) + "0 1 2 3 fds"));
    CHECK_THAT(out, Contains(std::string(rank) + "SigBlk:\t0000000000000000"));
    CHECK_THAT(out, Contains(std::string(rank) + "SigIgn:\t0000000000000000"));
  }
  CHECK(sessions.size() == 2);
}

TEST_CASE("WorkerGroup: stdin is the agent's for rank 0 only when there are several", "[proc]") {
  UniqueFd input(::memfd_create("stdin", MFD_CLOEXEC));
  REQUIRE(::write(input.get(), "typed\n", 6) == 6);
  ::lseek(input.get(), 0, SEEK_SET);
  GroupFixture run(true, ConsoleOptions{input.get(), -1, -1});
  run.start_shells({"read x; echo got $x", "read x; echo got $x"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  CHECK_THAT(run.out(), Contains("[0] got typed\n") && Contains("[1] got\n"));
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("WorkerGroup: a single worker has the agent's stdin", "[proc]") {
  UniqueFd input(::memfd_create("stdin", MFD_CLOEXEC));
  REQUIRE(::write(input.get(), "typed\n", 6) == 6);
  ::lseek(input.get(), 0, SEEK_SET);
  GroupFixture run(false, ConsoleOptions{input.get(), -1, -1});
  run.start_shells({"cat"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  CHECK(run.out() == "typed\n");
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("WorkerGroup: a warden that is not there is an error that names the file", "[proc]") {
  GroupFixture run;
  run.options.warden_path = "/no/such/ddprun-warden";
  CHECK_THROWS_WITH(run.start_shells({"exit 0"}), Contains("/no/such/ddprun-warden"));
  REQUIRE(run.stop_and_wait());  // there is nothing to stop, so the group is gone at once
}

TEST_CASE("WorkerGroup: running out of descriptors fails the worker, and hangs nothing", "[proc]") {
  GroupFixture run;
  run.make_group();
  std::vector<WorkerSpec> specs;
  for (int rank = 0; rank < 4; ++rank) {
    specs.push_back(GroupFixture::shell("exec sleep 100"));
    specs.back().global_rank = specs.back().local_rank = rank;
  }
  // Leaves room for the warden and one worker.
  std::vector<UniqueFd> spare;
  for (int i = 0; i < 14; ++i) spare.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<UniqueFd> hog;
  rlimit limit, small{64, 0};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  small.rlim_max = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &small);
  for (int fd; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) hog.emplace_back(fd);
  spare.clear();
  run.group->start(std::move(specs));
  const bool failed = run.wait_for([&] { return !run.failures.empty(); });
  hog.clear();
  ::setrlimit(RLIMIT_NOFILE, &limit);
  REQUIRE(failed);
  CHECK_THAT(run.failures.front().note, Contains("Too many open files"));
  REQUIRE(run.stop_and_wait());
}

TEST_CASE("worker group: exit code 75 is a worker that left, where that was asked for", "[proc]") {
  GroupFixture fixture;
  fixture.start_shells({"exit 75", "exit 0"});
  SECTION("asked for") {
    fixture.group->ask_to_leave(SIGUSR1);
    REQUIRE(fixture.wait_for([&] { return fixture.num_all_left > 0; }));
    CHECK(fixture.failures.empty());
    CHECK(fixture.num_all_succeeded == 0);
  }
  SECTION("nobody asked for it") {
    REQUIRE(fixture.wait_for([&] { return !fixture.failures.empty(); }));
    CHECK(fixture.failures[0].exit_code == 75);
    CHECK(fixture.num_all_left == 0);
  }
  CHECK(fixture.stop_and_wait());
}

TEST_CASE("worker group: a warning reaches those that handle it, once, and harms nobody else",
          "[proc]") {
  GroupFixture fixture;
  const test::TempDirectory directory;
  const std::string go = directory.path("go");
  const std::string waits = "until [ -e " + go + " ]; do sleep 0.02; done; ";
  // A shell runs its trap when its command has ended; `wait` ends at once.
  const auto handles = [](const std::string& name) {
    return "trap 'echo warned " + name + "; exit 75' USR2; echo up; sleep 600 & wait";
  };
  fixture.start_shells({
      handles("itself"),
      "sh -c \"" + handles("below") + "\"; exit $?",  // a wrapper that has no handler
      "echo up; " + waits + "echo lives; exit 75",
      "trap '' USR2; echo up; " + waits + "exit 75",
      // This process belongs to its worker while that lives. Afterwards it is no worker's.
      "(trap 'echo wrong' USR2; while kill -0 $$ 2>/dev/null; do sleep 0.02; done; echo up; "
      "while :; do sleep 0.02; done) & exit 0",
  });
  const auto count = [&](const std::string& word) {
    const std::string text = fixture.out();
    std::size_t found = 0;
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  REQUIRE(fixture.wait_for([&] { return count("up\n") == 5; }));
  fixture.group->ask_to_leave(SIGUSR2);
  fixture.group->ask_to_leave(SIGUSR2);
  REQUIRE(fixture.wait_for([&] { return count("warned") == 2; }));
  std::ofstream(go).put('x');
  REQUIRE(fixture.wait_for([&] { return fixture.num_all_left > 0; }));
  CHECK(fixture.failures.empty());
  CHECK(count("lives") == 1);
  CHECK(count("warned below") == 1);
  CHECK(count("wrong") == 0);
  CHECK(fixture.stop_and_wait());
}

}  // namespace
}  // namespace ddprun::agent
