// SPDX-License-Identifier: Apache-2.0
#include "apps/train/options.h"

#include "tests/support/catch.h"

using namespace ddprun::train;

TEST_CASE("own tensors: buffers are each rank's own where rank 0's aren't sent") {
  const std::vector<std::string> buffers{"norm.running_mean", "norm.running_var"};
  CHECK(OwnTensors(Options(), buffers).empty());
  Options options;
  options.broadcast_buffers = false;
  CHECK(OwnTensors(options, {}).empty());
  const OwnTensors own(options, buffers);
  for (const std::string& buffer : buffers) CHECK(own.has(buffer));
  CHECK_FALSE(own.has("norm.weight"));
  CHECK_FALSE(own.has("sgd.norm.weight.momentum_buffer"));
}

TEST_CASE("own tensors: an ignored parameter, and what the optimiser keeps of it") {
  Options options;
  options.ignore_parameters = {"fc1.bias"};
  const OwnTensors own(options, {"norm.running_mean"});
  CHECK(own.has("fc1.bias"));
  CHECK(own.has("adam.fc1.bias.exp_avg"));
  for (const char* other : {"fc1.weight", "adam.fc1.weight.exp_avg", "adam.xfc1.bias.exp_avg",
                            "fc1.bias2", "norm.running_mean"}) {
    CHECK_FALSE(own.has(other));
  }
}
