// SPDX-License-Identifier: Apache-2.0
// Every error path of the nccl communicator, injected into the fake: set-up, launches, asynchronous
// errors, hangs, a lost store, memory, and the end.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/worker_sdk/core/nccl/rig.h"

namespace ddprun::test {
namespace {

using nccl::NcclCommunicator;
using nccl::NcclOptions;
using nccl::Result;
using nccl::Stream;
using std::chrono::milliseconds;

void blocking(NcclOptions& options) { options.blocking_wait = true; }

CallOptions within(milliseconds timeout, bool async = false) {
  CallOptions call;
  call.timeout = timeout;
  call.async = async;
  return call;
}

// ---- Set-up ----

TEST_CASE("NcclCommunicator: kInProgress is polled, in set-up, operations and registration") {
  Rig rig;
  rig.fake->set_in_progress_polls(3);
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, comm.rank(), DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    for (int i = 0; i < 5; ++i) comm.all_reduce(array.view(), ReduceOp::kAverage, {});
    comm.allocate(256);
    comm.barrier({});
    expect(array.read() == std::vector<double>({1, 2, 3, 4}), "the average");
  });
}

TEST_CASE("NcclCommunicator: without a unique id every rank hears rank 0's reason at once") {
  Rig rig;
  rig.fake->fail_next(0, "get_unique_id", Result::kSystemError);
  const auto begin = std::chrono::steady_clock::now();
  rig.run(3, [&](const NcclOptions& options) {
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == (options.rank == 0 ? ErrorCode::kSystem : ErrorCode::kPeerLost),
           error.what());
    expect(contains(error.what(), "rank 0: ncclGetUniqueId: unhandled system error"), error.what());
    expect(contains(error.what(), "details from the fake"), error.what());
  });
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: a rank whose set-up is refused is named by the others at once") {
  Rig rig;
  rig.fake->fail_next(1, "comm_init_rank", Result::kSystemError);
  const auto begin = std::chrono::steady_clock::now();
  rig.run(3, [&](const NcclOptions& options) {
    const Error error = error_of([&] { rig.join(options); });
    if (options.rank == 1) {
      expect(error.code() == ErrorCode::kSystem, error.what());
    } else {
      expect(error.code() == ErrorCode::kPeerLost, error.what());
      expect(contains(error.what(), "rank 1 gave up: rank 1: ncclCommInitRank"), error.what());
    }
  });
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10'000));
  CHECK(rig.fake->num_aborts() == 2);
}

TEST_CASE("NcclCommunicator: an asynchronous error in set-up ends it") {
  Rig rig;
  rig.fake->inject_async_error(1, Result::kRemoteError);
  rig.run(2, [&](const NcclOptions& options) {
    if (options.rank == 0) {  // waits for rank 1 and is told by the board or its own deadline
      NcclOptions mine = options;
      mine.init_timeout = milliseconds(500);
      error_of([&] {
        rig.join(mine).reset();
        rig.join(mine);
      });
      return;
    }
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == ErrorCode::kPeerLost, error.what());
    expect(contains(error.what(), "NCCL set-up: remote process exited"), error.what());
  });
}

TEST_CASE("NcclCommunicator: each communicator has an id of its own, a reused one is refused") {
  Rig rig;
  rig.run(1, [&](const NcclOptions& options) {
    const auto first = rig.join(options);
    NcclOptions other = options;
    other.key_prefix = "round1/comm1/";
    const auto second = rig.join(other);
    expect(rig.fake->num_ids() == 2, "two ids");
  });
  // The id of a round that is over, found again by a rank that comes back under the same prefix.
  rig.run(1, [&](NcclOptions options) {
    options.rank = 1;
    options.size = 2;
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == ErrorCode::kInvalidArgument, error.what());
  });
}

TEST_CASE("NcclCommunicator: rubbish under the id's key is a protocol error") {
  Rig rig;
  rig.store.set("round1/comm0/id/0", "not an id");
  rig.run(1, [&](NcclOptions options) {
    options.rank = 1;
    options.size = 2;
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == ErrorCode::kProtocol, error.what());
    expect(contains(error.what(), "9 bytes"), error.what());
  });
}

TEST_CASE("NcclCommunicator: a lost store during set-up is the error") {
  Rig rig;
  rig.store.break_connections();
  rig.run(1, [&](const NcclOptions& options) {
    expect(error_of([&] { rig.join(options); }).code() == ErrorCode::kConnectionLost, "lost");
  });
}

TEST_CASE("NcclCommunicator: above max_ranks_per_root several roots share the set-up") {
  for (const bool scalable : {true, false}) {
    Rig rig;
    rig.fake->set_has_init_rank_scalable(scalable);
    rig.run_with(
        5, [](NcclOptions& options) { options.max_ranks_per_root = 2; },
        [&](NcclCommunicator& comm, Stream) { comm.barrier({}); });
    CHECK(rig.fake->num_ids() == (scalable ? 3 : 1));
  }
}

TEST_CASE("NcclCommunicator: set-up restores the store's deadline and the thread's device") {
  Rig rig;
  NcclOptions options = rig.options(0, 1);
  options.device = 3;
  const auto connection = rig.store.clone();
  connection->set_timeout(milliseconds(12'345));
  rig.cuda->set_device(2);
  const auto comm = NcclCommunicator::create(rig.cuda, rig.nccl, *connection, options);
  comm->barrier({});
  int device = -1;
  rig.cuda->get_device(&device);
  CHECK(device == 2);
  CHECK(connection->timeout() == milliseconds(12'345));
}

TEST_CASE("NcclCommunicator: a CUDA failure in set-up aborts and is told to the others") {
  for (const char* function : {"stream_create", "event_create", "memory_allocate", "memory_set"}) {
    Rig rig;
    NcclOptions options = rig.options(0, 1);
    rig.fake_cuda->fail(function, 2);
    const Error error = error_of([&] { rig.join(options); });
    CHECK(error.code() == ErrorCode::kResourceExhausted);
    CHECK(contains(error.what(), "out of memory"));
    CHECK(rig.fake->num_aborts() == 1);
    CHECK(contains(rig.store.clone()->get("round1/comm0/gave_up"), "out of memory"));
  }
  Rig rig;
  rig.fake_cuda->fail("set_device", 101);
  NcclOptions options = rig.options(0, 1);
  options.device = 1;
  CHECK(contains(error_of([&] { rig.join(options); }).what(), "cudaSetDevice(1)"));
}

// ---- Operations ----

TEST_CASE("NcclCommunicator: an asynchronous error fails the operation with NCCL's words") {
  Rig rig;
  rig.run_with(2, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, comm.rank(), DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    comm.barrier({});
    if (comm.rank() == 1) return;  // gone without a word, as a killed process
    CallOptions async;
    async.async = true;
    const auto work = comm.all_reduce(array.view(), ReduceOp::kSum, async);
    rig.fake->inject_async_error(0, Result::kRemoteError);
    const Error error = error_of([&] { work->wait(); });
    expect(error.code() == ErrorCode::kPeerLost, error.what());
    expect(contains(error.what(), "rank 0: asynchronous error: remote process exited"),
           error.what());
    expect(contains(error.what(), "details from the fake"), error.what());
  });
}

TEST_CASE("NcclCommunicator: an asynchronous error is found with no operation under way") {
  Rig rig;
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream) {
    comm.barrier({});
    rig.fake->inject_async_error(0, Result::kSystemError);
    while (rig.fake->num_aborts() == 0) std::this_thread::yield();
    expect(error_of([&] { comm.barrier({}); }).code() == ErrorCode::kSystem, "kSystem");
  });
}

TEST_CASE("NcclCommunicator: what each call says when NCCL refuses it") {
  const struct {
    const char* function;
    Result result;
    ErrorCode code;
  } cases[] = {{"all_reduce", Result::kSystemError, ErrorCode::kSystem},
               {"all_reduce", Result::kUnhandledCudaError, ErrorCode::kSystem},
               {"all_reduce", Result::kInternalError, ErrorCode::kSystem},
               {"all_reduce", Result::kInvalidUsage, ErrorCode::kInvalidArgument},
               {"broadcast", Result::kRemoteError, ErrorCode::kPeerLost}};
  for (const auto& one : cases) {
    Rig rig;
    rig.run_communicators(1, [&](NcclCommunicator& comm, Stream stream) {
      DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
      array.write({1, 2, 3, 4});
      rig.fake->fail_next(0, one.function, one.result);
      const Error error = error_of([&] {
        if (one.function[0] == 'a') comm.all_reduce(array.view(), ReduceOp::kSum, {});
        comm.broadcast(array.view(), 0, {});
      });
      expect(error.code() == one.code, error.what());
      expect(contains(error.what(), one.function), error.what());
      expect(contains(error.what(), "details from the fake"), error.what());
      expect(std::string(error_of([&] { comm.allocate(8); }).what()) == error.what(),
             "it stays failed");
    });
    CHECK(rig.fake->num_aborts() == 1);
  }
}

TEST_CASE("NcclCommunicator: ranks whose calls don't match fail instead of waiting for ever") {
  Rig rig;
  rig.run_with(2, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, comm.rank(), DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    const std::size_t count = comm.rank() == 0 ? 4 : 3;
    error_of([&] { comm.all_reduce(array.part(0, count), ReduceOp::kSum, {}); });
  });
}

TEST_CASE("NcclCommunicator: a launch that hangs inside NCCL ends at the deadline") {
  Rig rig;
  rig.run_with(
      1, [](NcclOptions& options) { options.abort_timeout = milliseconds(1'500); },
      [&](NcclCommunicator& comm, Stream stream) {
        DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
        array.write({1, 2, 3, 4});
        rig.fake->hang_next(0, "all_reduce");
        const Error error = error_of(
            [&] { comm.all_reduce(array.view(), ReduceOp::kSum, within(milliseconds(100))); });
        expect(error.code() == ErrorCode::kTimeout, error.what());
        expect(contains(error.what(), "did not end within 100 ms"), error.what());
      });
}

TEST_CASE("NcclCommunicator: kInProgress that never settles ends at the deadline") {
  Rig rig;
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    rig.fake->set_in_progress_polls(1'000'000'000);
    const Error error =
        error_of([&] { comm.all_reduce(array.view(), ReduceOp::kSum, within(milliseconds(100))); });
    expect(error.code() == ErrorCode::kTimeout, error.what());
  });
}

TEST_CASE("NcclCommunicator: CUDA's failures around an operation are named") {
  for (const char* function : {"event_record", "stream_wait_event", "event_query"}) {
    Rig rig;
    rig.run_with(1, blocking, [&](NcclCommunicator& comm, Stream stream) {
      DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
      array.write({1, 2, 3, 4});
      rig.fake_cuda->fail(function, 700);
      const Error error = error_of([&] { comm.all_reduce(array.view(), ReduceOp::kSum, {}); });
      expect(error.code() == ErrorCode::kSystem, error.what());
      expect(contains(error.what(), "fake CUDA error 700"), error.what());
      rig.fake_cuda->succeed_again(function);
    });
  }
}

TEST_CASE("NcclCommunicator: an aborted operation is never reported as done") {
  Rig rig;
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, comm.rank(), DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    if (comm.rank() == 1) return;
    CallOptions async;
    async.async = true;
    const auto work = comm.all_reduce(array.view(), ReduceOp::kSum, async);
    expect(!work->is_completed(), "rank 1 is missing");
    comm.abort("enough");
    while (rig.fake->num_aborts() == 0) std::this_thread::yield();
    // By now the event may have passed, with rubbish in the buffer.
    expect(work->is_completed(), "it ended");
    expect(error_of([&] { work->wait(); }).code() == ErrorCode::kAborted, "and badly");
  });
}

TEST_CASE("NcclCommunicator: a work that was done before an abort stays done") {
  Rig rig;
  rig.run_with(1, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    CallOptions async;
    async.async = true;
    const auto work = comm.all_reduce(array.view(), ReduceOp::kSum, async);
    work->wait();
    comm.abort("enough");
    work->wait();
  });
}

TEST_CASE("NcclCommunicator: two threads on one communicator never meet inside NCCL") {
  Rig rig;
  rig.fake->set_in_progress_polls(1);
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream) {
    const auto buffer = comm.allocate(64);
    TensorView view;
    view.data = buffer->data();
    view.count = 16;
    view.device = Device{Device::Kind::kCuda, 0};
    std::thread other([&] {
      for (int i = 0; i < 50; ++i) comm.all_reduce(view, ReduceOp::kMax, {});
    });
    for (int i = 0; i < 50; ++i) comm.all_reduce(view, ReduceOp::kMax, {});
    other.join();
    comm.barrier({});  // the buffer goes before the communicator
  });
  CHECK(rig.fake->num_violations() == 0);
}

TEST_CASE("NcclCommunicator: a healthy run asks nothing of the store after set-up") {
  Rig rig;
  const auto patient = [](NcclOptions& options) {
    options.peer_check_interval = std::chrono::minutes(1);  // on a busy machine a barrier is slow
  };
  rig.run_with(2, patient, [&](NcclCommunicator& comm, Stream) {
    comm.barrier({});
    const long before = rig.store.num_requests();
    for (int i = 0; i < 20; ++i) comm.barrier({});
    expect(rig.store.num_requests() == before, "no request");
    comm.barrier({});
  });
}

TEST_CASE("NcclCommunicator: a lost store does not stop deadlines") {
  for (const bool has_store : {true, false}) {
    Rig rig;
    rig.run_with(
        2,
        [&](NcclOptions& options) {
          options.blocking_wait = true;
          if (!has_store) options.connect_store = nullptr;
        },
        [&](NcclCommunicator& comm, Stream) {
          comm.barrier({});
          if (comm.rank() == 1) return;
          rig.store.break_connections();
          const Error error = error_of([&] { comm.barrier(within(milliseconds(100))); });
          expect(error.code() == ErrorCode::kTimeout, error.what());
          expect(contains(error.what(), "can't say who is missing") == has_store, error.what());
        });
  }
  Rig rig;
  rig.run_with(
      2,
      [&](NcclOptions& options) {
        options.connect_store = []() -> std::unique_ptr<store::Store> {
          throw Error(ErrorCode::kUnavailable, "nobody there");
        };
      },
      [&](NcclCommunicator& comm, Stream) {
        comm.barrier({});
        if (comm.rank() == 1) return;
        const Error error = error_of([&] { comm.barrier(within(milliseconds(100))); });
        expect(error.code() == ErrorCode::kTimeout, error.what());
      });
}

// ---- Memory ----

TEST_CASE("NcclCommunicator: allocate uses ncclMemAlloc where it can, else cudaMalloc") {
  Rig rig;
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream) {
    const auto registered = comm.allocate(1000);
    expect(rig.fake->num_live_buffers() == 1 && rig.fake->num_registered() == 1, "registered");
    rig.fake->fail_next(0, "mem_alloc", Result::kUnhandledCudaError);
    const auto plain = comm.allocate(1000);
    expect(rig.fake->num_live_buffers() == 1, "cudaMalloc after a refusal");
    rig.fake->fail_next(0, "comm_register", Result::kInvalidUsage);
    const auto unregistered = comm.allocate(1000);
    expect(rig.fake->num_live_buffers() == 2 && rig.fake->num_registered() == 1, "not registered");
    rig.fake->set_has_mem_alloc(false);
    const auto old_library = comm.allocate(0);
    expect(rig.fake->num_live_buffers() == 2, "cudaMalloc without the function");
    rig.fake_cuda->fail("memory_allocate", 2);
    const Error error = error_of([&] { comm.allocate(1'000'000); });
    expect(error.code() == ErrorCode::kResourceExhausted, error.what());
    expect(contains(error.what(), "allocating 1000000 bytes on device 0"), error.what());
    rig.fake_cuda->succeed_again("memory_allocate");
    rig.fake->set_has_mem_alloc(true);
  });
}

// ---- The end ----

TEST_CASE("NcclCommunicator: a healthy one is flushed and destroyed, not aborted") {
  Rig rig;
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream) { comm.barrier({}); });
  CHECK(rig.fake->num_aborts() == 0);
  CHECK(rig.fake->num_live_comms() == 0);
}

TEST_CASE("NcclCommunicator: destroyed while a peer is missing, it aborts after abort_timeout") {
  Rig rig;
  rig.run(2, [&](NcclOptions options) {
    if (options.rank == 0) options.abort_timeout = milliseconds(1'000);
    auto comm = rig.join(options);
    const auto stream = static_cast<Stream>(options.current_stream(options.device));
    DeviceArray array(rig, stream, options.device, DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    CallOptions async;
    async.async = true;
    if (options.rank == 0) comm->all_reduce(array.view(), ReduceOp::kSum, async);
    comm.reset();
  });
  CHECK(rig.fake->num_aborts() == 1);
}

TEST_CASE("NcclCommunicator: an abort that hangs is reported at its deadline") {
  Rig rig;
  std::atomic<int> num_reports{0};
  const auto begin = std::chrono::steady_clock::now();
  rig.run(1, [&](NcclOptions options) {
    options.abort_timeout = milliseconds(100);
    options.on_hung_abort = [&](std::string_view message) {
      num_reports += contains(std::string(message), "ncclCommAbort did not return within 100 ms");
    };
    auto comm = rig.join(options);
    rig.fake->hang_aborts();
    comm->abort("enough");
    comm.reset();
    expect(num_reports.load() == 1, "one report");
  });
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10'000));
  rig.fake->release_aborts();
  while (rig.fake->num_live_comms() > 0) std::this_thread::yield();
  rig.fake_cuda->forget_live_objects();  // stream and events were left alone on purpose
}

TEST_CASE("NcclCommunicator: by default a hung abort ends the process with status 75") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Rig rig;
    NcclOptions options = rig.options(0, 1);
    options.abort_timeout = milliseconds(50);
    auto comm = rig.join(options);
    rig.fake->hang_aborts();
    comm->abort("enough");
    comm.reset();
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 75);
}

}  // namespace
}  // namespace ddprun::test
