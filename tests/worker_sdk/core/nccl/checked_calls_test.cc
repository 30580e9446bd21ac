// SPDX-License-Identifier: Apache-2.0
// Debug mode over the nccl communicator: calls that differ are found before NCCL sees them.
// Compiled twice: over the fake, and (label gpu) over real NCCL.
#include "tests/worker_sdk/core/nccl/checked_calls.h"

#include <utility>

#include "tests/support/catch.h"

namespace ddprun::test {
namespace {

TEST_CASE(
    "CheckedCommunicator: calls that the ranks make alike have NCCL's results, on the caller's "
    "stream") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run(2, [&](NcclOptions options) {
    const CurrentStream current = std::exchange(options.current_stream, {});
    const auto store = rig.store.clone();
    const auto world = join_checked(rig, options, *store);
    world->follow_stream(current);
    expect_alike(rig, *world, static_cast<Stream>(current(options.device)), options.device);
  });
}

TEST_CASE("CheckedCommunicator: calls that differ are named on every rank, and nothing hangs") {
  for (int what = 0; what < kNumDifferences; ++what) {
    CAPTURE(what);
    Rig rig;
    SKIP_WITHOUT_RANKS(rig, 2);
    rig.run(2, [&](const NcclOptions& options) {
      const auto store = rig.store.clone();
      const auto world = join_checked(rig, options, *store);
      const auto stream = static_cast<Stream>(options.current_stream(options.device));
      expect_named(rig, *world, stream, options.device, what);
    });
  }
}

}  // namespace
}  // namespace ddprun::test
