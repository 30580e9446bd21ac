// SPDX-License-Identifier: Apache-2.0
#include "agent/binding/binding_plan.h"

#include "tests/support/catch.h"

using namespace ddprun::agent;
using ddprun::CpuSet;
using ddprun::to_text;
using ddprun::test::Contains;

namespace {

// Two sockets of two NUMA nodes of four cores, two CPUs each (n and n + 16); two caches in a node.
MachineLayout two_sockets() {
  MachineLayout machine;
  for (int number = 0; number < 32; ++number) {
    const int core = number % 16;
    machine.cpus.push_back({.number = number,
                            .node = core / 4,
                            .socket = core / 8,
                            .core = core,
                            .cache = core / 2 * 2});
    machine.allowed.add(number);
  }
  for (int index = 0; index < 4; ++index) {
    machine.gpus.push_back(
        {.index = index, .bus_id = "bus", .uuid = "", .node = index < 3 ? 1 : 3});
  }
  return machine;
}

std::vector<std::string> cpus(const BindingPlan& plan) {
  REQUIRE(plan.problem.empty());
  std::vector<std::string> texts;
  for (const WorkerBinding& worker : plan.workers) texts.push_back(to_text(worker.cpus));
  return texts;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("binding: node and socket are those of the worker's GPU") {
  const MachineLayout machine = two_sockets();
  CHECK(cpus(plan_binding(BindingMode::kNode, machine, machine.gpus, 4)) ==
        Texts{"4-7,20-23", "4-7,20-23", "4-7,20-23", "12-15,28-31"});
  CHECK(cpus(plan_binding(BindingMode::kSocket, machine, machine.gpus, 4)) ==
        Texts{"0-7,16-23", "0-7,16-23", "0-7,16-23", "8-15,24-31"});
}

TEST_CASE(
    "binding: exclusive shares the node's physical cores, the first workers' share is larger") {
  const MachineLayout machine = two_sockets();
  CHECK(cpus(plan_binding(BindingMode::kExclusive, machine, machine.gpus, 4)) ==
        Texts{"4-5,20-21", "6,22", "7,23", "12-15,28-31"});
  const BindingPlan crowded = plan_binding(BindingMode::kExclusive, machine, {machine.gpus[0]}, 5);
  CHECK_THAT(crowded.problem,
             Contains("NUMA node 1 has 4 physical cores") && Contains("5 workers"));
}

TEST_CASE("binding: core-complex deals out the caches, the largest first, and begins again") {
  MachineLayout machine = two_sockets();
  CHECK(cpus(plan_binding(BindingMode::kCoreComplex, machine, machine.gpus, 4)) ==
        Texts{"4-5,20-21", "6-7,22-23", "4-5,20-21", "12-13,28-29"});
  // Makes the first cache's part smaller.
  machine.allowed = machine.allowed & *ddprun::parse_cpu_list("5-31");
  CHECK(cpus(plan_binding(BindingMode::kCoreComplex, machine, machine.gpus, 1)) ==
        Texts{"6-7,22-23"});
}

TEST_CASE("binding: workers without GPUs are dealt out to the nodes in blocks") {
  const MachineLayout machine = two_sockets();
  CHECK(cpus(plan_binding(BindingMode::kNode, machine, {}, 4)) ==
        Texts{"0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"});
  CHECK(cpus(plan_binding(BindingMode::kExclusive, machine, {}, 8)) ==
        Texts{"0-1,16-17", "2-3,18-19", "4-5,20-21", "6-7,22-23", "8-9,24-25", "10-11,26-27",
              "12-13,28-29", "14-15,30-31"});
  CHECK(cpus(plan_binding(BindingMode::kNode, machine, {}, 1)) == Texts{"0-3,16-19"});
}

TEST_CASE("binding: more workers than GPUs begin again with the first one") {
  const MachineLayout machine = two_sockets();
  const BindingPlan plan = plan_binding(BindingMode::kNode, machine, machine.gpus, 5);
  REQUIRE(plan.workers.size() == 5);
  CHECK(plan.workers[4].gpu->index == 0);
  CHECK_THAT(to_lines(plan)[3],
             Contains("local rank 3: CPUs 12-15,28-31 (NUMA node 3, GPU 3 bus)"));
}

TEST_CASE(
    "binding: CPUs that a cgroup or taskset forbids are not used, and named where none is left") {
  MachineLayout machine = two_sockets();
  machine.allowed = *ddprun::parse_cpu_list("0-4,20");
  CHECK(cpus(plan_binding(BindingMode::kNode, machine, machine.gpus, 1)) == Texts{"4,20"});
  CHECK(cpus(plan_binding(BindingMode::kNode, machine, {}, 2)) == Texts{"0-3", "4,20"});
  const BindingPlan plan = plan_binding(BindingMode::kNode, machine, machine.gpus, 4);
  CHECK_THAT(plan.problem, Contains("local rank 3: NUMA node 3 has CPUs 12-15,28-31") &&
                               Contains("allows 0-4,20"));
}

TEST_CASE("binding: its modes by name") {
  CHECK(parse_binding_mode("core-complex") == BindingMode::kCoreComplex);
  CHECK(parse_binding_mode("none") == BindingMode::kNone);
  CHECK(parse_binding_mode("numa") == std::nullopt);
}
