// SPDX-License-Identifier: Apache-2.0
// The places where a worker's cgroup may be made, on a fake root.
#include "agent/isolation/cgroup_tree.h"

#include "tests/support/catch.h"
#include "tests/support/fake_cgroups.h"
#include "tests/support/temp_directory.h"

using namespace ddprun::agent;
using ddprun::test::Contains;
using ddprun::test::FakeCgroups;
using Words = std::vector<std::string>;

namespace {

constexpr pid_t kOwnPid = 100;
constexpr char kUnit[] = "/sys/fs/cgroup/system.slice/ddprun.service";

struct UnitMachine {
  explicit UnitMachine(const std::string& own = "/system.slice/ddprun.service")
      : tree(root.path(), own) {
    tree.add(FakeCgroups::kMount, "cpuset cpu io memory pids");
    tree.add(kUnit, "cpu io memory pids", "100\n");
  }
  ddprun::test::TempDirectory root;
  FakeCgroups tree;
};

}  // namespace

TEST_CASE("cgroup place: a unit's own cgroup that systemd has given away") {
  UnitMachine machine;
  machine.tree.delegated = {kUnit};
  const CgroupPlace place = find_cgroup_place(machine.tree, kOwnPid, 0);
  CHECK(place.problem.empty());
  CHECK(place.directory == kUnit);
  CHECK(place.controllers == Words{"cpu", "io", "memory", "pids"});
  CHECK(place.enabled.empty());
  CHECK(place.needs_supervisor);
  CHECK(place.crowd.empty());
}

TEST_CASE("cgroup place: root doesn't write to a unit that systemd has not given away") {
  UnitMachine machine;
  const CgroupPlace place = find_cgroup_place(machine.tree, kOwnPid, 0);
  CHECK(place.directory.empty());
  CHECK_THAT(place.problem, Contains("ddprun.service is systemd's, which hasn't given it away"));
  CHECK_THAT(place.problem, Contains("Delegate=yes"));
  // A user who isn't root can write only files that were given to that user.
  CHECK(find_cgroup_place(machine.tree, kOwnPid, 1000).problem.empty());
}

TEST_CASE("cgroup place: a file that can't be written is named, with what to do") {
  UnitMachine machine;
  machine.tree.read_only = EROFS;
  const CgroupPlace place = find_cgroup_place(machine.tree, kOwnPid, 1000);
  CHECK_THAT(place.problem, Contains(std::string(kUnit) + ": Read-only file system; start ddprun"));
}

TEST_CASE("cgroup place: a ddprun in its supervisor's leaf finds the one above") {
  UnitMachine machine("/system.slice/ddprun.service/ddprun-supervisor");
  machine.tree.delegated = {kUnit};
  machine.tree.put(std::string(kUnit) + "/cgroup.procs", "");
  const CgroupPlace place = find_cgroup_place(machine.tree, kOwnPid, 0);
  CHECK(place.directory == kUnit);
  CHECK_FALSE(place.needs_supervisor);
}

TEST_CASE("cgroup place: another process in it is named") {
  UnitMachine machine;
  machine.tree.put(std::string(kUnit) + "/cgroup.procs", "100\n4711\n");
  machine.tree.put("/proc/4711/comm", "bash\n");
  CHECK(find_cgroup_place(machine.tree, kOwnPid, 1000).crowd == "4711 (bash)");
}

TEST_CASE("cgroup place: the machine's own is systemd's where there is one") {
  UnitMachine machine("/");
  const CgroupPlace place = find_cgroup_place(machine.tree, kOwnPid, 0);
  CHECK(place.directory == "/sys/fs/cgroup");
  CHECK_FALSE(place.needs_supervisor);  // the root cgroup may have processes beside cgroups
  machine.tree.put("/run/systemd/system/x", "");
  CHECK_THAT(find_cgroup_place(machine.tree, kOwnPid, 0).problem,
             Contains("/sys/fs/cgroup is the machine's own, which is systemd's"));
}

TEST_CASE("cgroup place: a container's own is not the machine's") {
  UnitMachine machine("/");
  machine.tree.add("/sys/fs/cgroup", "memory pids", "100\n");
  machine.tree.put("/sys/fs/cgroup/cgroup.events", "populated 1\n");
  const CgroupPlace place = find_cgroup_place(machine.tree, kOwnPid, 0);
  CHECK(place.directory == "/sys/fs/cgroup");
  CHECK(place.needs_supervisor);
}

TEST_CASE("cgroup place: there is none without cgroup v2, or in a cgroup for threads") {
  UnitMachine machine;
  machine.tree.put(std::string(kUnit) + "/cgroup.type", "threaded\n");
  CHECK_THAT(find_cgroup_place(machine.tree, kOwnPid, 1000).problem, Contains("is for threads"));
  machine.tree.put("/proc/self/cgroup", "4:memory:/job\n");
  CHECK_THAT(find_cgroup_place(machine.tree, kOwnPid, 0).problem,
             Contains("no cgroup v2 is mounted"));
}
