// SPDX-License-Identifier: Apache-2.0
// Calls that stay inside NCCL, injected into the fake, and the end of the process.
#include <future>
#include <string>
#include <thread>

#include "tests/support/catch.h"
#include "tests/worker_sdk/core/nccl/lone_child.h"

namespace ddprun::test {
namespace {

void all_reduce_in_vain(Rig& rig, NcclCommunicator& comm, milliseconds timeout) {
  DeviceArray array(rig, nullptr, 0, DType::kFloat32, 4);
  CallOptions call;
  call.timeout = timeout;
  const Error error = error_of([&] { comm.all_reduce(array.view(), ReduceOp::kMax, call); });
  expect(error.code() == ErrorCode::kTimeout, error.what());
}

TEST_CASE("NcclCommunicator: nothing is asked or aborted beside a call that stays inside NCCL") {
  Rig rig;
  rig.run(1, [&](NcclOptions options) {
    std::promise<std::string> report;
    options.abort_timeout = options.destroy_timeout = milliseconds(400);
    options.on_hung_abort = [&](std::string_view message) {
      report.set_value(std::string(message));
    };
    auto comm = rig.join(options);
    rig.fake->hang_next(0, "all_reduce");
    std::thread caller([&] { all_reduce_in_vain(rig, *comm, milliseconds(50)); });
    auto reported = report.get_future();
    const bool is_there = reported.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    const int num_aborts = rig.fake->num_aborts();
    rig.fake->release_hangs();
    caller.join();
    comm.reset();
    expect(is_there, "reported");
    const std::string message = reported.get();
    expect(contains(message, "rank 0: a call that is inside NCCL did not return within "), message);
    expect(num_aborts == 0, "no abort");
  });
  CHECK(rig.fake->num_violations() == 0);  // the watchdog has looked many times
  rig.fake->forget_live_comms();
  rig.fake_cuda->forget_live_objects();  // the stream and events were left alone on purpose
}

TEST_CASE("NcclCommunicator: a call that stays inside NCCL ends the process by default") {
  const auto [status, took] = run_child([](Rig& rig, NcclOptions& options) {
    options.abort_timeout = options.destroy_timeout = milliseconds(400);
    auto comm = rig.join(options);
    comm->barrier({});
    rig.fake->hang_next(0, "all_reduce");
    all_reduce_in_vain(rig, *comm, milliseconds(50));
  });
  CHECK(status == 75);
  CHECK(took < milliseconds(10'000));
}

}  // namespace
}  // namespace ddprun::test
