// SPDX-License-Identifier: Apache-2.0
// The files that are written and their values, on a fake root that refuses the same writes as a
// kernel.
#include "agent/isolation/worker_cgroups.h"

#include <sys/file.h>

#include <functional>
#include <utility>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/fake_cgroups.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace ddprun::agent;
using ddprun::test::Contains;
using ddprun::test::FakeCgroups;

namespace {

constexpr pid_t kOwn = 100;
const std::string kJob = "/sys/fs/cgroup/job.service";

struct LimitedNode {
  LimitedNode() : tree(std::make_shared<FakeCgroups>(root.path(), "/job.service")) {
    tree->add(FakeCgroups::kMount, "cpuset cpu io memory pids");
    tree->add(kJob, "cpuset io memory pids", "100\n");
    tree->delegated = {kJob};
    request.num_workers = 2;
    request.allowed = {0, 1};
    request.limits.memory_bytes = std::uint64_t{64} << 20;
    request.limits.pids = 30;
  }
  WorkerCgroups cgroups() {
    return {tree, plan_isolation(request, find_cgroup_place(*tree, kOwn, 0), *tree), kOwn};
  }
  std::string text(const std::string& path) const { return tree->text(kJob + "/" + path); }

  ddprun::test::TempDirectory root;
  std::shared_ptr<FakeCgroups> tree;
  IsolationRequest request;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("worker cgroups: each worker has a leaf with its limits, ddprun one of its own") {
  LimitedNode node;
  WorkerCgroups cgroups = node.cgroups();
  CHECK(node.text("cgroup.procs").empty());
  CHECK(node.text("ddprun-supervisor/cgroup.procs") == "100\n");
  CHECK(node.text("cgroup.subtree_control") == "memory pids\n");
  {
    const auto round = cgroups.begin_round();
    CHECK(round->directory() == kJob + "/ddprun-round-100-1");
    for (const char* worker : {"worker-0", "worker-1"}) {
      const std::string leaf = round->name() + "/" + worker + "/";
      CHECK(node.text(leaf + "memory.max") == "67108864\n");
      CHECK(node.text(leaf + "memory.swap.max") == "0\n");
      CHECK(node.text(leaf + "memory.oom.group") == "1\n");
      CHECK(node.text(leaf + "pids.max") == "30\n");
    }
    CHECK(node.text(round->name() + "/cgroup.procs").empty());
    CHECK(round->worker_fd(1) >= 0);
    CHECK(round->counts_memory());
  }
  CHECK(cgroups.begin_round()->name() == "ddprun-round-100-2");
  CHECK_FALSE(node.tree->exists(kJob + "/ddprun-round-100-1"));
}

TEST_CASE("worker cgroups: all is as it was once they are closed") {
  LimitedNode node;
  WorkerCgroups cgroups = node.cgroups();
  cgroups.begin_round();
  cgroups.close();
  CHECK(node.text("cgroup.procs") == "100\n");
  CHECK(node.text("cgroup.subtree_control") == "\n");
  CHECK(node.tree->children(kJob).empty());
}

TEST_CASE("worker cgroups: helpers that still end go back, too, a stranger doesn't") {
  LimitedNode node;
  WorkerCgroups cgroups = node.cgroups();
  node.tree->put("/proc/100/task/100/children", "101 ");
  node.tree->put("/proc/101/stat",
                 "101 (ddprun-gpus) S 100 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
  node.tree->put(kJob + "/ddprun-supervisor/cgroup.procs", "100\n101\n102\n");
  cgroups.close();
  CHECK(node.text("ddprun-supervisor/cgroup.procs") == "100\n101\n102\n");
  node.tree->put(kJob + "/ddprun-supervisor/cgroup.procs", "100\n101\n");
  cgroups.close();
  CHECK(node.text("cgroup.procs") == "100\n101\n");
  CHECK(node.tree->children(kJob).empty());
}

TEST_CASE("worker cgroups: a helper that is ending, and so can't be moved, is waited for") {
  LimitedNode node;
  WorkerCgroups cgroups = node.cgroups();
  const std::string leaf = kJob + "/ddprun-supervisor";
  node.tree->put("/proc/100/task/100/children", "101 ");
  node.tree->put("/proc/101/stat",
                 "101 (ddprun-stacks) R 100 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
  node.tree->put(leaf + "/cgroup.procs", "100\n101\n");
  node.tree->ending = {"101"};
  node.tree->was_opened = [&](const std::string& path) {
    if (path == leaf + "/cgroup.events") node.tree->put(leaf + "/cgroup.procs", "");
  };
  cgroups.close();
  CHECK(node.text("cgroup.procs") == "100\n");
  CHECK(node.tree->children(kJob).empty());
}

TEST_CASE("worker cgroups: a helper that ends during the look at the leaf is no stranger") {
  LimitedNode node;
  WorkerCgroups cgroups = node.cgroups();
  const std::string leaf = kJob + "/ddprun-supervisor";
  const std::string zeros = " 100 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
  node.tree->put("/proc/100/task/100/children", "101 ");
  node.tree->put("/proc/101/stat", "101 (ddprun-stacks) R" + zeros);
  node.tree->put(leaf + "/cgroup.procs", "100\n101\n");
  bool has_ended = false;
  node.tree->was_read = [&](const std::string& path) {
    if (path != leaf + "/cgroup.procs" || std::exchange(has_ended, true)) return;
    node.tree->put(path, "100\n");
    node.tree->put("/proc/101/stat", "101 (ddprun-stacks) Z" + zeros);
  };
  cgroups.close();
  CHECK(node.tree->children(kJob).empty());
}

TEST_CASE("worker cgroups: the end waits for a round whose warden is at it still") {
  LimitedNode node;
  WorkerCgroups cgroups = node.cgroups();
  const auto round = cgroups.begin_round();
  const std::string worker = round->directory() + "/worker-1/cgroup.procs";
  node.tree->put(worker, "103\n");
  node.tree->was_opened = [&](const std::string& path) {
    const bool is_killed = node.text(round->name() + "/cgroup.kill") == "1\n";
    if (is_killed && path == round->directory() + "/cgroup.events") node.tree->put(worker, "");
  };
  cgroups.close();
  CHECK(node.text("cgroup.procs") == "100\n");
  CHECK(node.tree->children(kJob).empty());
}

TEST_CASE("worker cgroups: several ddprun may share a supervisor's leaf") {
  LimitedNode node;
  enter_supervisor(*node.tree, kJob, kOwn);
  node.tree->put("/proc/self/cgroup", "0::/job.service/ddprun-supervisor\n");
  WorkerCgroups first = node.cgroups(), second = node.cgroups();
  first.begin_round();
  first.close();  // the other worker goes on
  CHECK(second.begin_round()->counts_memory());
  CHECK(node.text("ddprun-supervisor/cgroup.procs") == "100\n");
  // The cgroup is made even if somebody took the controllers back.
  REQUIRE(node.tree->write(kJob + "/cgroup.subtree_control", "-memory") == 0);
  CHECK(second.begin_round()->counts_memory());
}

TEST_CASE("worker cgroups: close() changes nothing once another cgroup depends on it") {
  LimitedNode node;
  WorkerCgroups cgroups = node.cgroups();
  node.tree->add(kJob + "/another", "memory");
  cgroups.close();
  CHECK(node.text("cgroup.subtree_control") == "memory pids\n");
  CHECK(node.text("ddprun-supervisor/cgroup.procs") == "100\n");
}

TEST_CASE("worker cgroups: nothing is written to files of the given cgroup but who is in it") {
  LimitedNode node;
  WorkerCgroups cgroups = node.cgroups();
  cgroups.begin_round();
  cgroups.close();
  for (const std::string& each : node.tree->written) {
    const std::string path = each.substr(0, each.find(' '));
    CAPTURE(each);
    CHECK(path.starts_with(kJob + "/"));
    const bool is_its_own = path.rfind('/') == kJob.size();
    CHECK((!is_its_own || path.ends_with("/cgroup.procs") ||
           path.ends_with("/cgroup.subtree_control")));
  }
}

TEST_CASE("worker cgroups: a limit that the kernel didn't take is an error, and nothing is left") {
  LimitedNode node;
  WorkerCgroups cgroups = node.cgroups();
  node.tree->lies["memory.max"] = "max";
  CHECK(message_of([&] { cgroups.begin_round(); }) ==
        kJob +
            "/ddprun-round-100-1/worker-0/memory.max is \"max\", not \"67108864\": the kernel "
            "did not take this limit");
  CHECK_FALSE(node.tree->exists(kJob + "/ddprun-round-100-1"));
  node.tree->lies.clear();
  node.tree->refusals["pids.max"] = EINVAL;
  CHECK_THAT(message_of([&] { cgroups.begin_round(); }),
             Contains("writing \"30\" to " + kJob +
                      "/ddprun-round-100-2/worker-0/pids.max: Invalid argument"));
}

TEST_CASE("worker cgroups: CPUs that the kernel took away are seen in what holds") {
  LimitedNode node;
  node.request.limits.cpuset_source = CpusetSource::kList;
  node.request.limits.cpuset = {0, 1};
  WorkerCgroups cgroups = node.cgroups();
  node.tree->lies["cpuset.cpus.effective"] = "0";
  CHECK_THAT(message_of([&] { cgroups.begin_round(); }),
             Contains("worker-0/cpuset.cpus.effective is \"0\", not \"0-1\""));
}

TEST_CASE("worker cgroups: a kernel that counts no swap does without that file alone") {
  LimitedNode node;
  node.tree->lacking["memory.swap.max"] = true;
  WorkerCgroups cgroups = node.cgroups();
  CHECK(cgroups.begin_round()->counts_memory());
  node.tree->lacking["memory.oom.group"] = true;
  CHECK_THAT(message_of([&] { cgroups.begin_round(); }),
             Contains("memory.oom.group: No such file or directory"));
}

TEST_CASE("worker cgroups: a process that came in between is named, and ddprun is where it was") {
  LimitedNode node;
  const IsolationPlan plan =
      plan_isolation(node.request, find_cgroup_place(*node.tree, kOwn, 0), *node.tree);
  node.tree->put(kJob + "/cgroup.procs", "100\n4711\n");
  node.tree->put("/proc/4711/stat", "4711 (bash) S 1 0\n");
  node.tree->put("/proc/4711/cmdline", std::string("bash\0-l\0", 8));
  const std::string message =
      message_of([&] { WorkerCgroups(node.tree, plan, kOwn).begin_round(); });
  CHECK_THAT(message, Contains("enabling memory in " + kJob +
                               "/cgroup.subtree_control: Device or "
                               "resource busy: these are in it: pid 4711 (bash -l)"));
  CHECK(node.text("cgroup.procs") == "4711\n100\n");
  CHECK_FALSE(node.tree->exists(kJob + "/ddprun-supervisor"));
}

TEST_CASE("worker cgroups: a round that a crash left is removed, one that lives isn't") {
  LimitedNode node;
  const std::string left = kJob + "/ddprun-round-7-1", live = kJob + "/ddprun-round-8-1";
  for (const std::string& round : {left, live}) {
    node.tree->make(round);
    node.tree->make(round + "/worker-0");
  }
  std::string inner = left + "/worker-0";
  for (int depth = 0; depth < 100; ++depth) node.tree->make(inner += "/d");
  const UniqueFd lock = node.tree->open(live);
  REQUIRE(::flock(lock.get(), LOCK_EX | LOCK_NB) == 0);
  WorkerCgroups cgroups = node.cgroups();
  CHECK_FALSE(node.tree->exists(left));
  CHECK(node.tree->exists(live + "/worker-0"));
}

TEST_CASE(
    "worker cgroups: a round that another ddprun has taken for a leftover gets another name") {
  LimitedNode node;
  WorkerCgroups cgroups = node.cgroups();
  UniqueFd others;
  int num_made = 0;
  node.tree->made = [&](const std::string& directory) {
    if (directory.ends_with("worker-0") || directory.ends_with("worker-1")) return;
    if (directory.ends_with("-1")) others = node.tree->open(directory);
    if (directory.ends_with("-1")) REQUIRE(::flock(others.get(), LOCK_EX | LOCK_NB) == 0);
    if (directory.ends_with("-2")) remove_cgroups(*node.tree, directory);
    ++num_made;
  };
  CHECK(cgroups.begin_round()->name() == "ddprun-round-100-3");
  CHECK(num_made == 3);
  node.tree->made = [&](const std::string& directory) { remove_cgroups(*node.tree, directory); };
  CHECK(message_of([&] { cgroups.begin_round(); }) == "others remove each new cgroup in " + kJob);
}
