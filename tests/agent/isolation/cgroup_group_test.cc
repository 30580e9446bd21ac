// SPDX-License-Identifier: Apache-2.0
// Workers in cgroups of their own, without limits: real processes, a real cgroup v2, whatever
// controllers it has.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "agent/isolation/worker_cgroups.h"
#include "common/error.h"
#include "tests/agent/group_fixture.h"
#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

using ddprun::test::Contains;
using std::chrono::milliseconds;

// Leaves for two workers, and no controller; "" or why there can be none here.
std::string make_cgroups(std::unique_ptr<WorkerCgroups>& cgroups) {
  auto tree = std::make_shared<CgroupTree>();
  IsolationPlan plan;
  plan.place = find_cgroup_place(*tree, ::getpid(), ::geteuid());
  if (!plan.place.problem.empty()) return plan.place.problem;
  plan.makes_cgroups = true;
  plan.workers.resize(2);
  cgroups = std::make_unique<WorkerCgroups>(tree, plan, ::getpid());
  return {};
}

// A version 1 freezer. A frozen process doesn't die of SIGKILL until it is thawed, like a process
// that hangs in the kernel.
class Freezer {
 public:
  Freezer() {
    std::error_code error;
    made_ = std::filesystem::create_directory(path_, error) &&
            std::filesystem::exists(path_ + "/freezer.state");
  }
  ~Freezer() {
    if (!made_) return;
    set("THAWED");
    std::error_code error;
    for (int i = 0; i < 2000 && !std::filesystem::remove(path_, error); ++i) {
      std::this_thread::sleep_for(milliseconds(1));  // no event says when the killed have left
    }
  }
  bool works() const { return made_; }
  void freeze(pid_t pid) const {
    std::ofstream(path_ + "/cgroup.procs") << pid;
    set("FROZEN");
  }
  void set(const std::string& state) const { std::ofstream(path_ + "/freezer.state") << state; }

 private:
  const std::string path_ = "/sys/fs/cgroup/freezer/ddprun-test-" + std::to_string(::getpid());
  bool made_ = false;
};

std::string cgroup_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return {};
}

bool has_ended(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

TEST_CASE("WorkerGroup: each worker and what it starts is in its leaf, which is gone with them",
          "[proc]") {
  std::unique_ptr<WorkerCgroups> cgroups;
  if (const std::string why = make_cgroups(cgroups); !why.empty()) DDPRUN_SKIP(why.c_str());
  GroupFixture run;
  run.options.cgroup = cgroups->begin_round();
  const std::string directory = run.options.cgroup->directory();
  const std::string show = "grep ^0:: /proc/self/cgroup; setsid sleep 600 & echo .; wait";
  run.start_shells({show, show});
  REQUIRE(run.wait_output("."));
  REQUIRE(run.wait_for([&] { return run.num_all_running > 0; }));
  for (const int rank : {0, 1}) {
    const pid_t pid = run.group->pids().at(static_cast<std::size_t>(rank));
    CHECK(cgroup_of(pid).ends_with(run.options.cgroup->name() + "/worker-" + std::to_string(rank)));
  }
  CHECK_FALSE(run.options.cgroup->is_empty());
  REQUIRE(run.stop_and_wait(milliseconds(0)));
  CHECK_FALSE(std::filesystem::exists(directory));
}

TEST_CASE("WorkerGroup: a process that somebody put into the workers' cgroup ends with them",
          "[proc]") {
  std::unique_ptr<WorkerCgroups> cgroups;
  if (const std::string why = make_cgroups(cgroups); !why.empty()) DDPRUN_SKIP(why.c_str());
  GroupFixture run;
  run.options.cgroup = cgroups->begin_round();
  const std::string leaf = run.options.cgroup->directory() + "/worker-0";
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    ::execl("/bin/sleep", "sleep", "600", nullptr);
    ::_exit(127);
  }
  REQUIRE(CgroupTree().write(leaf + "/cgroup.procs", std::to_string(stranger)) == 0);
  run.start_shells({"exit 0", "exit 0"});
  REQUIRE(run.wait_for([&] { return run.num_all_succeeded > 0; }));
  REQUIRE(run.stop_and_wait());
  int status = 0;
  REQUIRE(::waitpid(stranger, &status, 0) == stranger);
  CHECK(WIFSIGNALED(status));
  CHECK_FALSE(std::filesystem::exists(leaf));
}

TEST_CASE("WorkerGroup: a leaf that was removed by somebody is told, and the worker doesn't run",
          "[proc]") {
  std::unique_ptr<WorkerCgroups> cgroups;
  if (const std::string why = make_cgroups(cgroups); !why.empty()) DDPRUN_SKIP(why.c_str());
  GroupFixture run;
  run.options.cgroup = cgroups->begin_round();
  REQUIRE(std::filesystem::remove(run.options.cgroup->directory() + "/worker-0"));
  run.start_shells({"echo ran", "sleep 600"});
  REQUIRE(run.wait_for([&] { return !run.failures.empty(); }));
  CHECK_THAT(run.failures.front().note, Contains("could not enter its cgroup"));
  REQUIRE(run.stop_and_wait(milliseconds(0)));
  CHECK(run.out().empty());
}

TEST_CASE("WorkerGroup: processes that don't die are named, and then given up", "[proc]") {
  std::unique_ptr<WorkerCgroups> cgroups;
  if (const std::string why = make_cgroups(cgroups); !why.empty()) DDPRUN_SKIP(why.c_str());
  const Freezer freezer;
  if (!freezer.works()) DDPRUN_SKIP("no freezer (cgroup version 1) can be made here");
  GroupFixture run;
  run.options.cgroup = cgroups->begin_round();
  run.options.kill_notice = milliseconds(100);
  run.options.kill_limit = milliseconds(300);
  run.start_shells({"exec sleep 600", "exec sleep 601"});
  REQUIRE(run.wait_for([&] { return run.num_all_running > 0; }));
  const pid_t frozen = run.group->pids().at(1);
  freezer.freeze(frozen);
  REQUIRE(run.stop_and_wait(milliseconds(0)));
  // The shell may have been frozen before its exec.
  CHECK_THAT(run.given_up,
             Contains("pid " + std::to_string(frozen) + " (") && Contains("sleep 601), state "));
  CHECK_THAT(run.given_up, Contains("(" + run.options.cgroup->directory() + ")"));
  CHECK(run.given_up.find("sleep 600") == std::string::npos);
  // The warden goes on killing, and cleans up.
  freezer.set("THAWED");
  const std::string directory = run.options.cgroup->directory();
  run.options.cgroup.reset();
  run.group.reset();
  CHECK(run.wait_for([&] { return has_ended(frozen) && !std::filesystem::exists(directory); }));
}

TEST_CASE(
    "EmptyWait: hears of the end of the last process, or says at its deadline that one is left",
    "[proc]") {
  std::unique_ptr<WorkerCgroups> cgroups;
  if (const std::string why = make_cgroups(cgroups); !why.empty()) DDPRUN_SKIP(why.c_str());
  const auto round = cgroups->begin_round();
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/bin/sleep", "sleep", "600", nullptr);
    ::_exit(127);
  }
  REQUIRE(CgroupTree().write(round->directory() + "/worker-1/cgroup.procs",
                             std::to_string(child)) == 0);
  boost::asio::io_context io;
  std::vector<bool> said;
  const auto say = [&](bool is_empty) { said.push_back(is_empty); };
  const auto short_wait = EmptyWait::start(io, round, Deadline::after(milliseconds(20)), say);
  io.run();
  CHECK(said == std::vector<bool>{false});
  io.restart();
  const auto begun = Clock::now();
  const auto long_wait = EmptyWait::start(io, round, Deadline::after(kPatience), say);
  round->kill();
  io.run();
  CHECK(said == std::vector<bool>{false, true});
  CHECK(Clock::now() - begun < kPatience / 2);
  ::waitpid(child, nullptr, 0);
  CHECK(round->remove());
}

}  // namespace
}  // namespace ddprun::agent
