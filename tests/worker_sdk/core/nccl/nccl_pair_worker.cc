// SPDX-License-Identifier: Apache-2.0
// One of two ranks, started by ddprun, that may share a GPU. With host ids of their own an older
// NCCL takes the processes for two machines. It tests streams, debug mode and NaN over real NCCL.
// Without a GPU it prints SKIPPED and the reason, and exits with 77.
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "tests/worker_sdk/core/nccl/checked_calls.h"
#include "worker_sdk/core/session.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

void run(Rig& rig) {
  const auto session = Session::from_env();
  expect(session->world_size() == 2, "two ranks");
  int num_devices = 0;
  rig.cuda->device_count(&num_devices);
  NcclOptions options;
  options.rank = session->rank();
  options.size = session->world_size();
  options.device = session->env().device % num_devices;
  options.timeout = options.init_timeout = milliseconds(60'000);
  expect(rig.cuda->set_device(options.device) == nccl::kCudaSuccess, "the device");
  Stream stream = nullptr;
  expect(rig.cuda->stream_create_high_priority(&stream) == nccl::kCudaSuccess, "a stream");
  for (int what = -1; what < kNumDifferences; ++what) {
    options.key_prefix = "pair" + std::to_string(what) + "/";
    const auto world = join_checked(rig, options, session->store());
    world->follow_stream([stream](int) -> void* { return stream; });
    if (what < 0) expect_alike(rig, *world, stream, options.device);
    if (what < 0) expect_nan_passed_over(rig, *world, stream, options.device);
    if (what >= 0) expect_named(rig, *world, stream, options.device, what);
  }
  rig.cuda->stream_destroy(stream);
  if (session->rank() == 0) std::cout << "nccl_pair_worker: passed" << std::endl;
}

}  // namespace

int main() {
  const char* rank = std::getenv("RANK");
  ::setenv("NCCL_HOSTID", (std::string("rank") + (rank == nullptr ? "" : rank)).c_str(), 1);
  try {
    Rig rig;
    if (const char* why = rig.skip_reason(1); why != nullptr) {
      std::cout << "SKIPPED: " << why << std::endl;
      return 77;
    }
    run(rig);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "nccl_pair_worker: " << error.what() << std::endl;
    return 1;
  }
}
