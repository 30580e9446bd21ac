// SPDX-License-Identifier: Apache-2.0
// The reducer among 8 ranks of NCCL's fake, which knows what NVLS can do.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/worker_sdk/core/nccl/rig.h"
#include "worker_sdk/ddp/reducer.h"

namespace ddprun::test {
namespace {

constexpr int kNumRanks = 8;
constexpr float kMean = (kNumRanks - 1) / 2.0F;

// Gives each rank's number as its gradients, as DistributedDataParallel does. Returns whether all
// averages that this rank gets are right.
bool averages_are_right(NcclCommunicator& communicator, int device, ZeroStage stage) {
  std::vector<ParameterSpec> parameters;
  for (const std::size_t count : {300, 40, 5}) {
    parameters.push_back(
        {.name = concat("of ", count), .count = count, .device = {Device::Kind::kCuda, device}});
  }
  Reducer* filled = nullptr;
  const auto fill = [&](std::size_t number) {
    const TensorView bucket = filled->bucket(number);
    std::fill_n(static_cast<float*>(bucket.data), bucket.count,
                static_cast<float>(communicator.rank()) * static_cast<float>(filled->factor()));
  };
  Reducer reducer(communicator, parameters, {.first_bytes = 64, .cap_bytes = 256}, {stage, fill});
  filled = &reducer;
  const auto is_mean = [](const TensorView& view) {
    const auto* const values = static_cast<const float*>(view.data);
    return std::all_of(values, values + view.count, [](float each) { return each == kMean; });
  };
  for (std::size_t index = 0; index < parameters.size(); ++index) reducer.mark_ready(index);
  reducer.finalize();
  bool is_right = true;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (stage == ZeroStage::kOff) is_right &= is_mean(reducer.gradient(index));
  }
  for (std::size_t b = 0; b < reducer.num_buckets(); ++b) {
    if (stage != ZeroStage::kOff) is_right &= is_mean(reducer.shard(b));
  }
  return is_right;
}

TEST_CASE("Reducer: NVLS can do all that 8 ranks ask of NCCL, on one node and on two") {
  const int ranks_per_node = GENERATE(8, 4);
  const auto stage = GENERATE(ZeroStage::kOff, ZeroStage::kOptimizer, ZeroStage::kGradients);
  CAPTURE(ranks_per_node, static_cast<int>(stage));
  Rig rig;
  const bool scatters = stage != ZeroStage::kOff;  // NVLS does so on one node, else with SHARP only
  rig.fake->set_nodes(ranks_per_node, scatters);
  rig.run_with(kNumRanks, blocking, [&](NcclCommunicator& communicator, Stream) {
    expect(averages_are_right(communicator, device_of(communicator, rig), stage), "the averages");
  });
  CHECK(rig.fake->without_nvls() == std::set<std::string>());
}

}  // namespace
}  // namespace ddprun::test
