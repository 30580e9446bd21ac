// SPDX-License-Identifier: Apache-2.0
// Debug mode over the nccl communicator, and NaN, as one of its two ranks sees it: with ranks that
// are threads (checked_calls_test.cc, nccl_communicator_test.cc) and processes
// (nccl_pair_worker.cc).
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker_sdk/core/nccl/rig.h"
#include "worker_sdk/core/checked_communicator.h"
#include "worker_sdk/core/host/host_communicator.h"

namespace ddprun::test {

// Collective. `store` is one that the ranks share.
inline std::unique_ptr<Communicator> join_checked(Rig& rig, const NcclOptions& options,
                                                  store::Store& store) {
  const auto make_side = [&](const std::shared_ptr<WorkerProgress>& progress) {
    host::HostCommunicatorOptions side;
    side.rank = options.rank;
    side.size = options.size;
    side.key_prefix = options.key_prefix + "compare/";
    side.timeout = options.timeout;
    side.init_timeout = options.init_timeout;
    side.progress = progress;
    side.split_store = store.clone();
    return host::make_host_communicator(store, side);
  };
  return make_checked_communicator(nccl::make_nccl_communicator(rig.cuda, rig.nccl, store, options),
                                   0, make_side);
}

// `world` must follow `stream`.
inline void expect_alike(Rig& rig, Communicator& world, Stream stream, int device) {
  const std::size_t count = std::size_t{1} << 18;
  DeviceArray array(rig, stream, device, DType::kUInt8, count);
  for (int i = 0; i < 20; ++i) {  // these are only queued, before the all-reduce
    rig.cuda->memory_set(array.view().data, i < 19 ? 7 : 1, count, stream);
  }
  const WorkPtr work = world.all_reduce(array.view(), ReduceOp::kSum, {.async = true});
  work->wait();
  expect(array.read() == std::vector<double>(count, 2.0), "1 + 1 in every element");
  if (world.rank() == 1) array.write(std::vector<double>(count, 5.0));
  world.broadcast(array.view(), 1);
  expect(array.read() == std::vector<double>(count, 5.0), "rank 1's values");
  world.barrier();
}

// The rule of ReduceOp, which the host communicator has taken from NCCL: whichever rank has the
// NaN.
inline void expect_nan_passed_over(Rig& rig, Communicator& world, Stream stream, int device) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      DeviceArray array(rig, stream, device, dtype, 3);
      array.write(world.rank() == 0 ? std::vector{1.0, nan, nan} : std::vector{nan, 1.0, nan});
      world.all_reduce(array.view(), op);
      const std::vector<double> result = array.read();
      const std::string what = std::string(to_string(dtype)) + " " + to_string(op);
      expect(result[0] == 1 && result[1] == 1, what + ": the number");
      expect(std::isnan(result[2]), what + ": NaN where no rank has a number");
    }
  }
}

constexpr int kNumDifferences = 4;

// Rank 1 makes another call than rank 0. `what` < kNumDifferences chooses the difference.
// Afterwards `world` is aborted.
inline void expect_named(Rig& rig, Communicator& world, Stream stream, int device, int what) {
  DeviceArray floats(rig, stream, device, DType::kFloat32, 8);
  DeviceArray ints(rig, stream, device, DType::kInt32, 8);
  world.all_reduce(floats.view(), ReduceOp::kSum);
  const bool odd = world.rank() == 1;
  const Error error = error_of([&] {
    if (odd && what == 0) world.broadcast(floats.view(), 0);
    if (odd && what == 1) world.all_reduce(floats.part(0, 4), ReduceOp::kSum);
    if (odd && what == 2) world.all_reduce(floats.view(), ReduceOp::kMax);
    if (odd && what == 3) world.all_reduce(ints.view(), ReduceOp::kSum);
    if (!odd) world.all_reduce(floats.view(), ReduceOp::kSum, {.async = true})->wait();
  });
  expect(error.code() == ErrorCode::kProtocol, error.what());
  constexpr const char* kOdd[kNumDifferences] = {
      "broadcast #2 (32 bytes float32, root 0)", "all_reduce #2 (16 bytes float32, sum)",
      "all_reduce #2 (32 bytes float32, max)", "all_reduce #2 (32 bytes int32, sum)"};
  expect(contains(error.what(), std::string("rank 1 called ") + kOdd[what]), error.what());
  expect(contains(error.what(), "where rank 0 called all_reduce #2 (32 bytes float32, sum)"),
         error.what());
}

}  // namespace ddprun::test
