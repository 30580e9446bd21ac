// SPDX-License-Identifier: Apache-2.0
// Messages about a worker's memory at its end, and about processes that don't end.
#include <csignal>

#include "agent/isolation/cgroup_tree.h"
#include "agent/isolation/worker_cgroups.h"
#include "tests/support/catch.h"
#include "tests/support/fake_cgroups.h"
#include "tests/support/temp_directory.h"

using namespace ddprun::agent;
using ddprun::test::FakeCgroups;
using Pids = std::vector<pid_t>;

namespace {

WorkerMemory memory_with(const std::string& events, const std::string& max = "67108864\n") {
  WorkerMemory memory = parse_worker_memory(events, "67100672\n", max);
  memory.events_file = "/c/memory.events";
  return memory;
}

}  // namespace

TEST_CASE("worker memory: killed at its own limit, with peak and limit") {
  const auto memory = memory_with("low 0\nhigh 0\nmax 40\noom 2\noom_kill 3\noom_group_kill 1\n");
  CHECK(memory.peak_bytes == 67100672u);
  CHECK(memory.limit_bytes == 67108864u);
  CHECK(explain_end(memory, SIGKILL) ==
        "ran out: the kernel's OOM killer killed all of it, at its own limit (peak 64.0 "
        "MiB, limit 64 MiB; /c/memory.events: oom 2, oom_kill 3)");
}

TEST_CASE("worker memory: killed, but not at its own limit") {
  CHECK(explain_end(memory_with("oom 0\noom_kill 1\n", "max\n"), SIGKILL) ==
        "ran out: the kernel's OOM killer killed 1 process of it, not at its own limit: at one "
        "above, or the machine's (peak 64.0 MiB, no limit of its own; /c/memory.events: oom 0, "
        "oom_kill 1)");
}

TEST_CASE("worker memory: a signal 9 without the kernel's word is just that") {
  CHECK(explain_end(memory_with("max 40\noom 1\noom_kill 0\n"), SIGKILL).empty());
  CHECK(explain_end(parse_worker_memory("", "", ""), SIGKILL).empty());
  CHECK_FALSE(parse_worker_memory("", "", "").peak_bytes);
}

TEST_CASE("worker memory: another process of it was killed, perhaps that is why") {
  const std::string text = explain_end(memory_with("oom 1\noom_kill 1\n"), 0);
  CHECK(text.starts_with("perhaps ran out: "));
  CHECK(text.ends_with(", but not the worker itself"));
}

TEST_CASE("remaining processes: are named with their commands, and what they are in") {
  const ddprun::test::TempDirectory root;
  FakeCgroups tree(root.path(), "/");
  tree.add("/sys/fs/cgroup/r", "", "");
  tree.add("/sys/fs/cgroup/r/worker-0", "", "7\n");
  tree.add("/sys/fs/cgroup/r/worker-1", "", "8\n");
  tree.put("/proc/7/stat", "7 (python3) D 1 0\n");
  tree.put("/proc/7/cmdline", std::string("python3\0train.py\0", 17));
  tree.put("/proc/7/wchan", "nfs_wait_bit_killable");
  tree.put("/proc/8/stat", "8 (a b) R 1 0\n");
  tree.put("/proc/8/cmdline", "");
  tree.put("/proc/8/comm", "a b\n");
  tree.put("/proc/8/wchan", "0");
  Pids pids = processes_in(tree, "/sys/fs/cgroup/r");
  std::sort(pids.begin(), pids.end());
  CHECK(pids == Pids{7, 8});
  CHECK(to_text(tree, pids) ==
        "pid 7 (python3 train.py), state D in nfs_wait_bit_killable; pid 8 (a b), state R");
  CHECK(to_text(tree, {}).empty());
  CHECK(to_text(tree, {1, 2, 3, 4, 5, 6, 7}).ends_with("; and 2 more"));
}

TEST_CASE("remaining processes: a frozen cgroup that keeps one from its end is named") {
  const ddprun::test::TempDirectory root;
  FakeCgroups tree(root.path(), "/");
  tree.put("/proc/7/stat", "7 (a) D 1 0\n");
  tree.put("/proc/7/cmdline", "a");
  SECTION("version 1, by a cgroup above its own") {
    tree.put("/proc/self/mountinfo", "9 1 0:9 / /freezer rw - cgroup cgroup rw,freezer\n");
    tree.put("/proc/7/cgroup", "3:freezer:/paused/job\n0::/\n");
    tree.put("/freezer/paused/job/freezer.self_freezing", "0\n");
    tree.put("/freezer/paused/freezer.self_freezing", "1\n");
    CHECK(to_text(tree, {7}) ==
          "pid 7 (a), state D, in the frozen cgroup /freezer/paused (to thaw it: echo THAWED "
          ">/freezer/paused/freezer.state)");
  }
  SECTION("version 2") {
    tree.put("/proc/7/cgroup", "0::/job\n");
    tree.put("/sys/fs/cgroup/job/cgroup.freeze", "1\n");
    CHECK(to_text(tree, {7}) ==
          "pid 7 (a), state D, in the frozen cgroup /sys/fs/cgroup/job (to thaw it: echo 0 "
          ">/sys/fs/cgroup/job/cgroup.freeze)");
  }
}

TEST_CASE("remaining processes: are found below an ancestor, ended ones left out") {
  const ddprun::test::TempDirectory root;
  FakeCgroups tree(root.path(), "/");
  constexpr char kRest[] = " 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
  tree.put("/proc/10/task/10/children", "11 12 ");
  tree.put("/proc/11/task/11/children", "13");
  tree.put("/proc/11/stat", std::string("11 (a) Z") + kRest);
  tree.put("/proc/12/stat", std::string("12 (b) S") + kRest);
  tree.put("/proc/13/stat", std::string("13 (c) D") + kRest);
  Pids pids = processes_below(tree, 10);
  std::sort(pids.begin(), pids.end());
  CHECK(pids == Pids{12, 13});
}
