// SPDX-License-Identifier: Apache-2.0
// Debug mode over the nccl communicator, as one of its two ranks sees it: with ranks that are
// threads (checked_calls_test.cc) and processes (nccl_pair_worker.cc).
#pragma once

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
