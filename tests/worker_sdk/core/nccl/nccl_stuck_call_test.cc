// SPDX-License-Identifier: Apache-2.0
// Calls that stay inside NCCL, injected into the fake: what becomes of the process then.
#include <unistd.h>

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
  const Error error = error_of([&] { comm.all_reduce(array.view(), ReduceOp::kSum, call); });
  expect(error.code() == ErrorCode::kTimeout, error.what());
}

TEST_CASE("NcclCommunicator: a launch that an abort which returned does not free is reported") {
  Rig rig;
  rig.run(1, [&](NcclOptions options) {
    std::promise<std::string> report;
    options.abort_timeout = options.destroy_timeout = milliseconds(400);
    options.on_hung_abort = [&](std::string_view message) {
      report.set_value(std::string(message));
    };
    auto comm = rig.join(options);
    rig.fake->hang_next_for_good(0, "all_reduce");
    std::thread caller([&] { all_reduce_in_vain(rig, *comm, milliseconds(50)); });
    auto reported = report.get_future();
    const bool is_there = reported.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    const int num_aborts = rig.fake->num_aborts();
    rig.fake->release_hangs();
    caller.join();
    comm.reset();
    expect(is_there, "reported");
    const std::string message = reported.get();
    expect(contains(message, "rank 0: a call that was inside NCCL did not return within ") &&
               contains(message, "although ncclCommAbort did"),
           message);
    expect(num_aborts == 1, "the abort came first");
  });
  CHECK(rig.fake->num_live_comms() == 0);
  rig.fake_cuda->forget_live_objects();  // stream and events were left alone on purpose
}

TEST_CASE("NcclCommunicator: by default a call that the abort does not free ends the process") {
  const std::string function = GENERATE("all_reduce", "comm_async_error");
  CAPTURE(function);
  const auto [status, took] = run_child([&](Rig& rig, NcclOptions& options) {
    options.abort_timeout = options.destroy_timeout = milliseconds(400);
    options.query_timeout = milliseconds(100);
    auto comm = rig.join(options);
    comm->barrier({});
    rig.fake->hang_next_for_good(0, function);
    if (function == "all_reduce") all_reduce_in_vain(rig, *comm, milliseconds(50));
    for (;;) ::pause();
  });
  CHECK(status == 75);
  CHECK(took < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: a query that hangs while a healthy one is flushed leads to an abort") {
  Rig rig;
  rig.run(1, [&](NcclOptions options) {
    options.abort_timeout = milliseconds(500);
    auto comm = rig.join(options);
    const auto stream = static_cast<Stream>(options.current_stream(options.device));
    std::promise<void> go;
    rig.fake_cuda->enqueue(stream, [&] { go.get_future().wait(); });  // a flush takes until then
    DeviceArray array(rig, stream, options.device, DType::kFloat32, 4);
    comm->all_reduce(array.view(), ReduceOp::kSum, {.async = true});
    std::thread hang([&] {  // once ncclCommFinalize was called, only the flush asks
      while (!rig.fake->is_finalizing(0)) std::this_thread::yield();
      rig.fake->hang_next(0, "comm_async_error");
      while (rig.fake->num_aborts() == 0) std::this_thread::yield();
      go.set_value();
    });
    comm.reset();
    hang.join();
  });
  CHECK(rig.fake->num_aborts() == 1);
  CHECK(rig.fake->num_live_comms() == 0);
}

}  // namespace
}  // namespace ddprun::test
