// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/isolation_plan.h"

#include "tests/support/catch.h"
#include "tests/support/fake_cgroups.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace ddprun::agent;
using ddprun::test::Contains;
using ddprun::test::FakeCgroups;
using Words = std::vector<std::string>;
using Settings = std::vector<CgroupSetting>;

namespace {

struct PlannedNode {
  PlannedNode() : tree(root.path(), "/") {
    place.directory = "/sys/fs/cgroup/job";
    place.controllers = {"cpuset", "cpu", "io", "memory", "pids"};
    request.num_workers = 2;
    request.allowed = {0, 1, 2, 3};
  }
  IsolationPlan plan() const { return plan_isolation(request, place, tree); }

  ddprun::test::TempDirectory root;
  FakeCgroups tree;
  CgroupPlace place;
  IsolationRequest request;
};

}  // namespace

TEST_CASE("isolation plan: nothing is made without limits") {
  const IsolationPlan plan = PlannedNode().plan();
  CHECK_FALSE(plan.makes_cgroups);
  CHECK(plan.shortfall().empty());
}

TEST_CASE("isolation plan: memory is in whole pages, without swap, and ends a worker whole") {
  PlannedNode node;
  node.request.limits.memory_bytes = 10'000'000;
  const IsolationPlan plan = node.plan();
  CHECK(plan.makes_cgroups);
  CHECK(plan.controllers == Words{"memory"});
  REQUIRE(plan.workers.size() == 2);
  CHECK(plan.workers[0] == plan.workers[1]);
  CHECK(plan.workers[0] == Settings{{"memory.max", "9998336"},
                                    {"memory.swap.max", "0", "", true},
                                    {"memory.oom.group", "1"}});
}

TEST_CASE("isolation plan: memory is counted wherever it can be") {
  PlannedNode node;
  node.request.limits.pids = 50;
  CHECK(node.plan().controllers == Words{"pids", "memory"});
  CHECK(node.plan().workers[0] == Settings{{"pids.max", "50"}});
  node.place.controllers = {"pids"};
  CHECK(node.plan().controllers == Words{"pids"});
  CHECK(node.plan().shortfall().empty());
}

TEST_CASE("isolation plan: CPUs of a list for all, of the binding for each") {
  PlannedNode node;
  node.request.limits.cpuset_source = CpusetSource::kList;
  node.request.limits.cpuset = {1, 2};
  CHECK(node.plan().workers[1] == Settings{{"cpuset.cpus", "1-2", "cpuset.cpus.effective"}});
  node.request.bound = {{1}, {2}};
  CHECK(node.plan().problems.empty());
  node.request.bound = {{1}, {3}};
  CHECK_THAT(node.plan().problems.at(0), Contains("--numa-binding gives local rank 1 CPUs 3"));
  node.request.limits.cpuset_source = CpusetSource::kBinding;
  CHECK(node.plan().workers[1] == Settings{{"cpuset.cpus", "3", "cpuset.cpus.effective"}});
  node.request.limits.cpuset_source = CpusetSource::kList;
  node.request.limits.cpuset = {3, 4};
  CHECK_THAT(node.plan().problems.at(0),
             Contains("--worker-cpuset=3-4: this process may use CPUs 0-3"));
}

TEST_CASE("isolation plan: CPUs are bound by affinity without the cpuset controller") {
  PlannedNode node;
  node.place.controllers = {"memory"};
  node.request.limits.cpuset_source = CpusetSource::kList;
  node.request.limits.cpuset = {1, 2};
  const IsolationPlan plan = node.plan();
  CHECK(plan.affinity == std::vector<CpuSet>{{1, 2}, {1, 2}});
  CHECK_THAT(plan.shortfall(), Contains("--worker-cpuset can't be enforced: the cpuset controller "
                                        "is not in /sys/fs/cgroup/job/cgroup.controllers"));
  CHECK_THAT(plan.shortfall(), Contains("bound by affinity, which a worker may change"));
}

TEST_CASE("isolation plan: a disk's limit is by its number, a partition's by its disk's") {
  PlannedNode node;
  node.tree.devices = {{"/data", "8:1"}, {"/dev/sdb", "8:16"}};
  node.tree.put("/sys/dev/block/8:16/dev", "8:16\n");
  node.tree.put("/sys/dev/block/sda/dev", "8:0\n");
  node.tree.put("/sys/dev/block/8:1/dev", "8:1\n");
  node.tree.put("/sys/dev/block/8:1/partition", "1\n");
  // The file of "8:1/..", which is a link on a machine.
  node.tree.put("/sys/dev/block/dev", "8:0\n");
  node.request.limits.io = {{"/data", 1024}, {"8:16", {}, {}, {}, 500}};
  const IsolationPlan plan = node.plan();
  CHECK(plan.problems.empty());
  CHECK(plan.controllers == Words{"io", "memory"});
  CHECK(plan.workers[0] == Settings{{"io.max", "8:0 rbps=1024 wbps=max riops=max wiops=max"},
                                    {"io.max", "8:16 rbps=max wbps=max riops=max wiops=500"}});
  node.request.limits.io = {{"/nfs", 1}};
  CHECK_THAT(node.plan().problems.at(0), Contains("--worker-io: /nfs: no block device is there"));
  node.request.limits.io = {{"/dev/sdb", 1}, {"8:16", 1}};
  CHECK_THAT(node.plan().problems.at(0), Contains("/dev/sdb and 8:16 are one disk (8:16)"));
}

TEST_CASE("isolation plan: limits that can't be enforced for one reason are said in one line") {
  PlannedNode node;
  node.request.limits.memory_bytes = 1 << 24;
  node.request.limits.pids = 9;
  node.place = {};
  node.place.problem = "no cgroup v2 is mounted here that this process is in";
  const IsolationPlan plan = node.plan();
  CHECK_FALSE(plan.makes_cgroups);
  CHECK(plan.shortfall() ==
        "--worker-memory, --worker-pids can't be enforced: " + node.place.problem);
}

TEST_CASE("isolation plan: no controller can be given on beside other processes") {
  PlannedNode node;
  node.request.limits.pids = 9;
  node.place.crowd = "4711 (bash)";
  CHECK_THAT(node.plan().shortfall(),
             Contains("process 4711 (bash) is in /sys/fs/cgroup/job, too"));
  node.place.enabled = {"pids"};
  CHECK(node.plan().shortfall().empty());
  CHECK(node.plan().controllers == Words{"pids"});
}

TEST_CASE("isolation plan: a setting has to be read back as it was written") {
  const CgroupSetting memory{"memory.max", "4096"};
  CHECK(difference(memory, "4096\n").empty());
  CHECK(difference(memory, "max\n") == "is \"max\", not \"4096\"");
  const CgroupSetting cpus{"cpuset.cpus", "0-1,3", "cpuset.cpus.effective"};
  CHECK(difference(cpus, "0,1,3\n").empty());
  CHECK(difference(cpus, "0-1\n") == "is \"0-1\", not \"0-1,3\"");
  const CgroupSetting io{"io.max", "8:0 rbps=1 wbps=max riops=max wiops=max"};
  CHECK(difference(io, "8:16 rbps=2 wbps=max riops=max wiops=max\n" + io.value + "\n").empty());
  CHECK_FALSE(difference(io, "8:16 rbps=1 wbps=max riops=max wiops=max\n").empty());
  CHECK_FALSE(difference(io, "").empty());
}
