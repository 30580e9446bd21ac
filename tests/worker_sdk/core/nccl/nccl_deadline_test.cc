// SPDX-License-Identifier: Apache-2.0
// Deadlines and abort of the nccl communicator. Compiled twice: over the fake, and (label gpu) over
// real NCCL.
#include <atomic>
#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/worker_sdk/core/nccl/rig.h"

namespace ddprun::test {
namespace {

TEST_CASE("NcclCommunicator: set-up with a missing rank ends at its deadline and names it") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 3);
  const auto begin = std::chrono::steady_clock::now();
  rig.run(2, [&](NcclOptions options) {
    options.size = 3;  // rank 2 never comes
    options.init_timeout = milliseconds(1'500);
    const Error error = error_of([&] { rig.join(options); });
    const bool told_by_peer =
        error.code() == ErrorCode::kPeerLost && contains(error.what(), "gave up");
    expect(error.code() == ErrorCode::kTimeout || told_by_peer, error.what());
    expect(contains(error.what(), "never came: rank 2"), error.what());
  });
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: set-up without rank 0 ends at its deadline and names it") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run(1, [&](NcclOptions options) {
    options.rank = 1;
    options.size = 2;
    options.init_timeout = milliseconds(300);
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == ErrorCode::kTimeout, error.what());
    expect(contains(error.what(), "never came: rank 0"), error.what());
  });
}

TEST_CASE("NcclCommunicator: an operation that a rank never joins times out and names it") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  const int size = std::min(rig.max_ranks(), 3);
  std::atomic<int> num_failed{0};
  rig.run_with(
      size,
      [](NcclOptions& options) {
        options.blocking_wait = true;
        options.missing_ranks_grace = milliseconds(2'000);  // enough for a busy machine
      },
      [&](NcclCommunicator& comm, Stream stream) {
        DeviceArray array(rig, stream, device_of(comm, rig), DType::kFloat32, 16);
        array.write(std::vector<double>(16, 1.0));
        comm.all_reduce(array.view(), ReduceOp::kSum, {});
        if (comm.rank() == size - 1) {  // this rank stays away until the others have given up
          while (num_failed.load() < size - 1) std::this_thread::yield();
          return;
        }
        CallOptions call;
        call.timeout = milliseconds(300);
        Error error(ErrorCode::kAborted, "");
        try {
          error = error_of([&] { comm.all_reduce(array.view(), ReduceOp::kSum, call); });
        } catch (...) {
          ++num_failed;
          throw;
        }
        ++num_failed;
        expect(error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerLost,
               error.what());
        expect(contains(error.what(), "operation 2, all_reduce of 16 float32 sum"), error.what());
        expect(contains(error.what(), "not waiting in it: rank " + std::to_string(size - 1)),
               error.what());
        const Error again = error_of([&] { comm.barrier({}); });
        expect(std::string(again.what()) == error.what(), "the first error stays");
      });
}

TEST_CASE("NcclCommunicator: abort ends the others' operations with the rank's name") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  std::barrier both(2);  // an abort before the other's set-up has ended would end that
  rig.run_with(2, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, device_of(comm, rig), DType::kFloat32, 16);
    array.write(std::vector<double>(16, 1.0));
    both.arrive_and_wait();
    if (comm.rank() == 1) {
      comm.abort("the data loader failed");
      comm.abort("a second time");
      const Error error = error_of([&] { comm.barrier({}); });
      expect(error.code() == ErrorCode::kAborted, error.what());
      expect(contains(error.what(), "the data loader failed"), error.what());
      return;
    }
    const Error error = error_of([&] { comm.all_reduce(array.view(), ReduceOp::kSum, {}); });
    expect(error.code() == ErrorCode::kPeerLost, error.what());
    expect(contains(error.what(), "rank 1"), error.what());
  });
}

TEST_CASE("NcclCommunicator: abort from another thread ends a wait on this rank") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run_with(2, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, device_of(comm, rig), DType::kFloat32, 16);
    array.write(std::vector<double>(16, 1.0));
    if (comm.rank() == 1) return;  // this rank leaves without joining
    const CallOptions async{.async = true};
    const auto work = comm.all_reduce(array.view(), ReduceOp::kSum, async);
    std::thread other([&] { comm.abort("enough"); });
    Error error(ErrorCode::kSystem, "");
    try {
      error = error_of([&] { work->wait(); });
    } catch (...) {
      other.join();
      throw;
    }
    other.join();
    expect(error.code() == ErrorCode::kAborted, error.what());
    expect(work->is_completed(), "it has ended, badly");
    expect(error_of([&] { work->wait(); }).code() == ErrorCode::kAborted, "it stays failed");
  });
}

}  // namespace
}  // namespace ddprun::test
