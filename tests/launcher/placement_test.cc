// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement.h"

#include "tests/support/catch.h"

using namespace ddprun::launcher;
using ddprun::CpuSet;
using ddprun::Environment;
using ddprun::agent::BindingMode;
using ddprun::agent::MachineLayout;
using ddprun::test::Contains;
using Devices = std::vector<std::string>;

namespace {

MachineLayout two_cpus() {
  MachineLayout machine;
  machine.cpus = {{0, 0, 0, 0, 0}, {1, 0, 0, 1, 0}};
  machine.allowed = CpuSet{0, 1};
  return machine;
}

Placement devices(const Environment& environment, int num_workers) {
  LaunchConfig config;
  config.virtual_local_rank = true;
  return place_workers(config, environment, num_workers, {});
}

}  // namespace

TEST_CASE("placement: nothing asked, nothing bound, --show-binding then says what may be used") {
  LaunchConfig config;
  CHECK_FALSE(needs_machine_layout(config));
  CHECK(place_workers(config, {}, 2, {}).cpus.empty());
  config.show_binding = true;
  const Placement shown = place_workers(config, {}, 2, two_cpus());
  CHECK(shown.cpus.empty());
  CHECK_THAT(shown.notes.at(0), Contains("CPUs 0-1"));
}

TEST_CASE("placement: each worker's CPUs, what can't be done names the flag") {
  LaunchConfig config;
  config.binding = BindingMode::kExclusive;
  CHECK(place_workers(config, {}, 2, two_cpus()).cpus == std::vector<CpuSet>{{0}, {1}});
  CHECK_THAT(place_workers(config, {}, 3, two_cpus()).problems.at(0),
             Contains("--numa-binding: local rank 0: NUMA node 0 has 2 physical cores"));
  MachineLayout huge = two_cpus();
  huge.allowed = CpuSet();
  CHECK_THAT(place_workers(config, {}, 1, huge).problems.at(0), Contains("more than 1024 CPUs"));
}

TEST_CASE("placement: a GPU for each worker, from HIP's list, CUDA's, or all of them") {
  CHECK(devices({}, 2).devices == Devices{"0", "1"});
  CHECK(devices({{"CUDA_VISIBLE_DEVICES", "4, 6"}}, 2).devices == Devices{"4", "6"});
  CHECK(devices({{"CUDA_VISIBLE_DEVICES", "4"}, {"HIP_VISIBLE_DEVICES", "1,2"}}, 2).devices ==
        Devices{"1", "2"});
  CHECK_THAT(devices({{"CUDA_VISIBLE_DEVICES", "4"}}, 2).problems.at(0),
             Contains("--virtual-local-rank: 2 workers, but CUDA_VISIBLE_DEVICES=4 names 1"));
  CHECK_FALSE(devices({{"CUDA_VISIBLE_DEVICES", ""}}, 1).problems.empty());
}
