// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

TEST_CASE("topology: the flag, then Slurm's address, then the files") {
  LaunchConfig config;
  std::vector<ConfigFile> files(2);
  files[1].topology = "rack9";
  Environment environment;
  CHECK(topology_label(config, environment, {}).empty());
  CHECK(topology_label(config, environment, files) == "rack9");
  environment["SLURM_TOPOLOGY_ADDR"] = "s0.s4.node12";
  environment["SLURM_TOPOLOGY_ADDR_PATTERN"] = "switch.switch.node";
  CHECK(topology_label(config, environment, files) == "s0.s4");
  config.topology = "pod1.rack7";
  CHECK(topology_label(config, environment, files) == "pod1.rack7");
}

TEST_CASE("topology: Slurm without switches says nothing") {
  const Environment environment = {{"SLURM_TOPOLOGY_ADDR", "node12"},
                                   {"SLURM_TOPOLOGY_ADDR_PATTERN", "node"}};
  CHECK(topology_label({}, environment, {}).empty());
}

}  // namespace
}  // namespace ddprun::launcher
