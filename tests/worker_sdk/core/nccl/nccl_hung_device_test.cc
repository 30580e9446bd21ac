// SPDX-License-Identifier: Apache-2.0
// A device that hangs in calls of CUDA. After a failure a communicator waits only for some of them.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/worker_sdk/core/nccl/lone_child.h"

namespace ddprun::test {
namespace {

void hang_at_exit() {
  std::atexit([] {
    for (;;) ::pause();
  });
}

void short_limits(NcclOptions& options) {
  options.abort_timeout = options.free_timeout = milliseconds(300);
  options.exit_timeout = milliseconds(100);
}

TEST_CASE(
    "NcclCommunicator: a freeing that hangs after a failure is left behind, and so is the exit") {
  const auto [status, took] = run_child([](Rig& rig, NcclOptions& options) {
    short_limits(options);
    hang_at_exit();
    auto comm = rig.join(options);
    comm->abort("enough");
    rig.fake_cuda->hang("memory_free");
    comm.reset();
    std::exit(rig.fake_cuda->num_hanging() == 1 && rig.fake->num_aborts() == 1 ? 3 : 4);
  });
  CHECK(status == 3);
  CHECK(took < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: a healthy one whose device is busy leaves exit handlers their time") {
  const auto [status, took] = run_child([](Rig& rig, NcclOptions& options) {
    short_limits(options);
    std::atexit([] {
      std::this_thread::sleep_for(milliseconds(600));  // much longer than exit_timeout
      ::_exit(5);
    });
    auto comm = rig.join(options);
    comm->barrier({});
    rig.fake_cuda->hang("memory_free");
    comm.reset();
    std::exit(rig.fake_cuda->num_hanging() == 1 ? 3 : 4);
  });
  CHECK(status == 5);
  CHECK(took < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: one that can't be made frees within its time what it had") {
  const auto [status, took] = run_child([](Rig& rig, NcclOptions& options) {
    short_limits(options);
    hang_at_exit();
    rig.fake_cuda->fail("memory_set", 700);
    rig.fake_cuda->hang("memory_free");
    const Error error = error_of([&] { rig.join(options); });
    std::exit(error.code() == ErrorCode::kSystem && rig.fake_cuda->num_hanging() == 1 ? 3 : 4);
  });
  CHECK(status == 3);
  CHECK(took < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: the first buffer that hangs after a failure is the last one tried") {
  const std::string function = GENERATE("memory_free", "event_record");
  CAPTURE(function);
  const auto [status, took] = run_child([&](Rig& rig, NcclOptions& options) {
    short_limits(options);
    hang_at_exit();
    rig.fake->set_has_mem_alloc(false);
    auto comm = rig.join(options);
    std::vector<std::unique_ptr<CommBuffer>> buffers;
    for (int i = 0; i < 20; ++i) buffers.push_back(comm->allocate(64));
    comm->abort("enough");
    rig.fake_cuda->hang(function);
    buffers.clear();
    comm.reset();
    std::exit(rig.fake_cuda->num_hanging() == 1 ? 3 : 4);
  });
  CHECK(status == 3);
  CHECK(took < milliseconds(5'000));  // 20 whole waits would take longer
}

TEST_CASE("NcclCommunicator: buffers are freed after a failure if the device still answers") {
  Rig rig;
  rig.fake->set_has_mem_alloc(false);
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream) {
    const int before = rig.fake_cuda->num_live_objects();
    auto buffer = comm.allocate(64);
    comm.abort("enough");
    while (rig.fake->num_aborts() == 0) std::this_thread::yield();
    buffer.reset();
    // The events of the freeing stay in the pool.
    expect(rig.fake_cuda->num_live_objects() <= before + 2, "freed");
  });
}

TEST_CASE("NcclCommunicator: events are left where the device hangs") {
  const bool abort_hangs = GENERATE(false, true);
  CAPTURE(abort_hangs);
  const auto [status, took] = run_child([&](Rig& rig, NcclOptions& options) {
    short_limits(options);
    hang_at_exit();
    options.on_hung_abort = [](std::string_view) {};
    auto comm = rig.join(options);
    comm->barrier({});
    if (abort_hangs) rig.fake->hang_aborts();
    comm->abort("enough");
    rig.fake_cuda->hang("event_destroy");
    comm.reset();
    std::exit(rig.fake_cuda->num_hanging() == (abort_hangs ? 0 : 1) ? 3 : 4);
  });
  CHECK(status == 3);
  CHECK(took < milliseconds(10'000));
}

TEST_CASE(
    "NcclCommunicator: CUDA that hangs before a launch is found at the operation's deadline") {
  Rig rig;
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
    rig.fake_cuda->hang("event_record");
    std::thread release([&] {
      const auto limit = Deadline::after(milliseconds(20'000));
      while (rig.fake->num_aborts() == 0 && !limit.expired()) std::this_thread::yield();
      rig.fake_cuda->release_hangs();
    });
    CallOptions call;
    call.timeout = milliseconds(50);
    const Error error = error_of([&] { comm.all_reduce(array.view(), ReduceOp::kMax, call); });
    release.join();
    expect(error.code() == ErrorCode::kTimeout, error.what());
    expect(rig.fake->num_aborts() == 1, "aborted");
  });
}

TEST_CASE("NcclCommunicator: an abort while NCCL registers a buffer frees nothing under it") {
  Rig rig;
  std::promise<void> reported;
  const auto change = [&](NcclOptions& options) {
    options.abort_timeout = milliseconds(400);
    options.on_hung_abort = [&](std::string_view) { reported.set_value(); };
  };
  rig.run_with(1, change, [&](NcclCommunicator& comm, Stream) {
    comm.barrier({});
    rig.fake->hang_next(0, "comm_register");
    std::thread aborts([&] {
      while (rig.fake->num_hanging() == 0) std::this_thread::yield();
      comm.abort("enough");
      reported.get_future().wait();
      rig.fake->release_hangs();
    });
    const Error error = error_of([&] { comm.allocate(64); });
    aborts.join();
    expect(error.code() == ErrorCode::kAborted, error.what());
  });
  CHECK(rig.fake->num_violations() == 0);
  CHECK(rig.fake->num_aborts() == 0);
  rig.fake->forget_live_comms();
  rig.fake_cuda->forget_live_objects();
}

}  // namespace
}  // namespace ddprun::test
