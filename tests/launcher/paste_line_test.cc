// SPDX-License-Identifier: Apache-2.0
#include "launcher/endpoint_discovery.h"

#include "tests/support/catch.h"

using namespace ddprun::launcher;
using ddprun::test::Contains;

TEST_CASE("paste line: the command as typed, with this host's address") {
  LaunchConfig config;
  config.max_nodes = 2;
  config.typed = {"--nnodes=2", "--nproc_per_node=4", "train", "a b"};
  const std::string text =
      no_endpoint_message(config, "10.0.0.1", {"the Slurm step 1.0 has only 1"});
  CHECK_THAT(text, Contains("    ddprun --rdzv-endpoint=10.0.0.1:29400 --nnodes=2 "
                            "--nproc_per_node=4 train 'a b'\n"));
  CHECK_THAT(text, Contains("Not used: the Slurm step"));
}
