// SPDX-License-Identifier: Apache-2.0
// The reducer among ranks of NCCL's fake. NVLS and NCCL's symmetric kernels reduce no average of
// floats, so ranks must ask for sums.
#include <algorithm>
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
bool averages_are_right(NcclCommunicator& communicator, int device,
                        const ReducerSharding& sharding) {
  std::vector<ParameterSpec> parameters;
  for (const std::size_t count : {300, 40, 5}) {
    parameters.push_back(
        {.name = concat("of ", count), .count = count, .device = {Device::Kind::kCuda, device}});
  }
  Reducer reducer(communicator, parameters, {.first_bytes = 64, .cap_bytes = 256}, sharding);
  const auto is_mean = [](const TensorView& view) {
    const auto* const values = static_cast<const float*>(view.data);
    return std::all_of(values, values + view.count, [](float each) { return each == kMean; });
  };
  const float share =
      static_cast<float>(communicator.rank()) * static_cast<float>(reducer.factor());
  for (std::size_t b = 0; b < reducer.num_buckets(); ++b) {
    std::fill_n(static_cast<float*>(reducer.bucket(b).data), reducer.bucket(b).count, share);
  }
  for (std::size_t index = 0; index < parameters.size(); ++index) reducer.mark_ready(index);
  reducer.finalize();
  bool is_right = true;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (sharding.stage == ZeroStage::kOff) is_right &= is_mean(reducer.gradient(index));
  }
  for (std::size_t b = 0; b < reducer.num_buckets(); ++b) {
    if (sharding.stage != ZeroStage::kOff) is_right &= is_mean(reducer.shard(b));
  }
  return is_right;
}

TEST_CASE("Reducer: NCCL gets sums alone, on one node of 8 GPUs and on two of 4") {
  const int num_devices = GENERATE(8, 4);
  const auto stage = GENERATE(ZeroStage::kOff, ZeroStage::kOptimizer);
  CAPTURE(num_devices, static_cast<int>(stage));
  Rig rig(num_devices);
  rig.run_with(kNumRanks, blocking, [&](NcclCommunicator& communicator, Stream) {
    const int device = device_of(communicator, rig);
    expect(averages_are_right(communicator, device, {.stage = stage}), "the averages");
  });
  CHECK(rig.fake->num_float_averages() == 0);
}

}  // namespace
}  // namespace ddprun::test
