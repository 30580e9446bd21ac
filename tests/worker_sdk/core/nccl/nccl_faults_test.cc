// SPDX-License-Identifier: Apache-2.0
// Failures of operations of an nccl communicator that are under way, injected into the fake:
// launches, asynchronous errors, hangs, CUDA, a lost store.
#include <sys/mman.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/env_names.h"
#include "common/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/worker_sdk/core/nccl/rig.h"
#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/nccl/comm_setup.h"

namespace ddprun::test {
namespace {

CallOptions within(milliseconds timeout, bool async = false) {
  CallOptions call;
  call.timeout = timeout;
  call.async = async;
  return call;
}

TEST_CASE("NcclCommunicator: an asynchronous error fails the operation with NCCL's words") {
  Rig rig;
  rig.run_with(2, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, comm.rank(), DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    comm.barrier({});
    if (comm.rank() == 1) return;  // it goes without a word, like a killed process
    const CallOptions async{.async = true};
    const auto work = comm.all_reduce(array.view(), ReduceOp::kSum, async);
    rig.fake->inject_async_error(0, Result::kRemoteError);
    const Error error = error_of([&] { work->wait(); });
    expect(error.code() == ErrorCode::kPeerLost, error.what());
    expect(contains(error.what(), "rank 0: asynchronous error: remote process exited"),
           error.what());
    expect(contains(error.what(), "details from the fake"), error.what());
  });
}

TEST_CASE("NcclCommunicator: a group of which NCCL refuses a call launches nothing") {
  Rig rig;
  rig.run_with(2, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, comm.rank(), DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    comm.barrier({});
    if (comm.rank() == 1) return;
    rig.fake->fail_next(0, "recv", Result::kInvalidUsage);
    const Error error = error_of([&] {
      comm.group([&] {
        comm.send(array.part(0, 1), 1, {});
        comm.recv(array.part(1, 1), 1, {});
      });
    });
    expect(contains(error.what(), "operation 3, recv of 1 float32 from rank 1"), error.what());
    expect(rig.fake->num_running(0) == 0, "the send isn't on the stream");
  });
}

TEST_CASE("NcclCommunicator: ranks to which NCCL does not show a lost peer hear of it") {
  Rig rig;
  rig.run_with(3, blocking, [&](NcclCommunicator& comm, Stream) {
    comm.barrier({});
    if (comm.rank() == 2) return;  // it goes without a word
    if (comm.rank() == 1) {
      while (!rig.fake->num_running(0)) std::this_thread::yield();
      rig.fake->inject_async_error(1, Result::kRemoteError);
    }
    const Error error = error_of([&] { comm.barrier({}); });
    expect(error.code() == ErrorCode::kPeerLost, error.what());
    const char* const said = comm.rank() == 1 ? "rank 1: asynchronous error: remote process exited"
                                              : "rank 0: operation 2, barrier: rank 1 gave up: ";
    expect(contains(error.what(), said), error.what());
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

// The page of one rank, as its agent sees it.
class AgentPage {
 public:
  AgentPage() : memory_(::memfd_create("page", MFD_CLOEXEC)) {
    expect(::ftruncate(memory_.get(), kProgressPageBytes) == 0, "memory");
    write(0, kProgressMagic);
    write(8, kProgressVersion);
    progress_ = std::make_shared<WorkerProgress>(memory_);
  }
  const std::shared_ptr<WorkerProgress>& progress() const { return progress_; }
  void tell_peer_lost() { write(144, 1); }

 private:
  void write(off_t offset, std::uint64_t word) {
    expect(::pwrite(memory_.get(), &word, sizeof word, offset) == 8, "a word");
  }

  const UniqueFd memory_;
  std::shared_ptr<WorkerProgress> progress_;
};

constexpr const char* kAgentSays = "a worker of this round has died, says the agent";

TEST_CASE("NcclCommunicator: a peer that the agent calls lost ends what waits for it") {
  Rig rig;
  AgentPage page;
  const auto change = [&](NcclOptions& options) {
    options.blocking_wait = true;
    if (options.rank == 0) options.progress = page.progress();
  };
  const auto begun = Clock::now();
  rig.run_with(2, change, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, comm.rank(), DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    if (comm.rank() == 1) return;  // this rank never comes
    const auto work = comm.all_reduce(array.view(), ReduceOp::kSum, {.async = true});
    while (!rig.fake->num_running(0)) std::this_thread::yield();
    page.tell_peer_lost();
    const Error error = error_of([&] { work->wait(); });
    expect(error.code() == ErrorCode::kPeerLost, error.what());
    const std::string what = "rank 0: operation 1, all_reduce of 4 float32 sum: ";
    expect(error.what() == what + kAgentSays, error.what());
    while (rig.fake->num_aborts() == 0) std::this_thread::yield();
    expect(error_of([&] { comm.barrier({}); }).code() == ErrorCode::kPeerLost, "it stays failed");
  });
  CHECK(Clock::now() - begun < rig.options(0, 2).timeout / 4);
}

TEST_CASE("NcclCommunicator: told of a lost peer between operations, the next one throws") {
  Rig rig;
  AgentPage page;
  rig.run_with(
      1, [&](NcclOptions& options) { options.progress = page.progress(); },
      [&](NcclCommunicator& comm, Stream) {
        comm.barrier({});
        page.tell_peer_lost();
        while (rig.fake->num_aborts() == 0) std::this_thread::yield();
        const Error error = error_of([&] { comm.barrier({}); });
        expect(error.code() == ErrorCode::kPeerLost, error.what());
        expect(contains(error.what(), kAgentSays), error.what());
      });
  // The ranks need no word of each other, because the agents have told it to all.
  CHECK_FALSE(rig.store.check({rig.options(0, 1).key_prefix + "gave_up"}));
}

TEST_CASE("NcclCommunicator: a peer that is lost while the ranks meet ends the set-up") {
  Rig rig;
  AgentPage page;
  const auto begun = Clock::now();
  rig.run(1, [&](NcclOptions options) {
    options.size = 2;  // rank 1 never comes
    options.progress = page.progress();
    page.tell_peer_lost();
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == ErrorCode::kPeerLost, error.what());
    expect(error.what() == std::string("rank 0: NCCL set-up: ") + kAgentSays, error.what());
  });
  CHECK(nccl::is_any_comm_left_behind());  // NCCL still waits for rank 1
  CHECK(Clock::now() - begun < rig.options(0, 2).init_timeout / 4);
  rig.fake->release_hangs();
  while (nccl::is_any_comm_left_behind()) std::this_thread::yield();
}

TEST_CASE("NcclCommunicator: each call says how NCCL refused it") {
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
        if (one.function[0] == 'a') comm.all_reduce(array.view(), ReduceOp::kMax, {});
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

TEST_CASE("NcclCommunicator: a sum or average over one rank is done at once, without NCCL") {
  Rig rig;
  const auto progress = std::make_shared<WorkerProgress>();
  const auto counted = [&](NcclOptions& options) { options.progress = progress; };
  rig.run_with(1, counted, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, 0, DType::kFloat32, 4),
        other(rig, stream, 0, DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    rig.fake->fail_next(0, "all_reduce", Result::kSystemError);
    rig.fake_cuda->fail("event_record", 700);
    comm.all_reduce(array.view(), ReduceOp::kSum);
    const auto work = comm.all_reduce(array.view(), ReduceOp::kAverage, {.async = true});
    expect(work->is_completed(), "nothing is under way");
    work->wait();
    rig.fake_cuda->succeed_again("event_record");
    comm.reduce_scatter(array.view(), other.view(), ReduceOp::kSum);
    expect(other.read() == std::vector<double>({1, 2, 3, 4}), "to other memory it is a copy");
    expect(array.read() == other.read(), "in place nothing changes");
    const Error refused = error_of([&] { comm.all_reduce(array.view(), ReduceOp::kMax); });
    expect(contains(refused.what(), "details from the fake"), "NCCL had not been asked before");
    const Error again = error_of([&] { comm.all_reduce(array.view(), ReduceOp::kSum); });
    expect(again.what() == std::string(refused.what()), "a failure is still thrown");
  });
  const auto entries = progress->recorder().entries();
  REQUIRE(entries.size() == 4);
  CHECK(entries[0].state == OperationState::kCompleted);
  CHECK(entries[1].facts.sequence == 2);
  CHECK(entries[1].facts.op == static_cast<std::uint8_t>(ReduceOp::kAverage));
  CHECK(progress->page().collectives_begun == 4);
  CHECK(progress->page().collectives_done == 4);
}

TEST_CASE("NcclCommunicator: ranks whose calls don't match fail instead of waiting for ever") {
  Rig rig;
  rig.run_with(2, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, comm.rank(), DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    const std::size_t count = comm.rank() == 0 ? 4 : 3;
    const Error error =
        error_of([&] { comm.all_reduce(array.part(0, count), ReduceOp::kSum, {}); });
    expect(error.code() == ErrorCode::kInvalidArgument, error.what());
    expect(contains(error.what(), "invalid usage"), error.what());
  });
}

TEST_CASE("NcclCommunicator: CUDA's failures around an operation are named") {
  for (const char* function : {"event_record", "stream_wait_event", "event_query"}) {
    Rig rig;
    rig.run_with(1, blocking, [&](NcclCommunicator& comm, Stream stream) {
      DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
      array.write({1, 2, 3, 4});
      rig.fake_cuda->fail(function, 700);
      const Error error = error_of([&] { comm.all_reduce(array.view(), ReduceOp::kMax, {}); });
      expect(error.code() == ErrorCode::kSystem, error.what());
      expect(contains(error.what(), "fake CUDA error 700"), error.what());
      rig.fake_cuda->succeed_again(function);
    });
  }
}

TEST_CASE("NcclCommunicator: an operation that can't be ordered is refused by the call itself") {
  const struct {
    const char* function;
    int num_good_calls;
  } cases[] = {{"event_record", 0},       // the event on the caller's stream
               {"stream_wait_event", 0},  // our stream waits for it
               {"event_record", 1}};      // the event at the operation's end
  for (const auto& one : cases) {
    Rig rig;
    rig.run_communicators(1, [&](NcclCommunicator& comm, Stream stream) {
      DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
      array.write({1, 2, 3, 4});
      rig.fake_cuda->fail(one.function, 700, one.num_good_calls);
      const CallOptions async{.async = true};
      const Error error = error_of([&] { comm.all_reduce(array.view(), ReduceOp::kMax, async); });
      rig.fake_cuda->succeed_again(one.function);
      expect(error.code() == ErrorCode::kSystem, error.what());
      expect(contains(error.what(), "operation 1, all_reduce of 4 float32 max: fake CUDA error"),
             error.what());
    });
    CHECK(rig.fake->num_aborts() == 1);
  }
}

TEST_CASE("NcclCommunicator: an aborted operation is never reported as done") {
  Rig rig;
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, comm.rank(), DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    if (comm.rank() == 1) return;
    const CallOptions async{.async = true};
    const auto work = comm.all_reduce(array.view(), ReduceOp::kSum, async);
    expect(!work->is_completed(), "rank 1 is missing");
    comm.abort("enough");
    while (rig.fake->num_aborts() == 0) std::this_thread::yield();
    // The event may have passed by now, with rubbish in the buffer.
    expect(work->is_completed(), "it ended");
    expect(error_of([&] { work->wait(); }).code() == ErrorCode::kAborted, "and badly");
  });
}

TEST_CASE("NcclCommunicator: a work that was done before an abort stays done") {
  Rig rig;
  rig.run_with(1, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    const CallOptions async{.async = true};
    const auto work = comm.all_reduce(array.view(), ReduceOp::kMax, async);
    work->wait();
    comm.abort("enough");
    work->wait();
  });
}

constexpr char kTwoThreads[] = "two threads call one communicator at the same time";

TEST_CASE("NcclCommunicator: one of two threads that call it at once is refused by name") {
  Rig rig;
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
    const auto call = [&] {
      std::string why;
      test::code_of([&] { comm.all_reduce(array.view(), ReduceOp::kMax, {}); }, &why);
      return why;
    };
    rig.fake->hang_next(0, "all_reduce");
    auto first = std::async(std::launch::async, call);
    while (rig.fake->num_hanging() == 0) std::this_thread::yield();
    auto second = std::async(std::launch::async, call);
    const bool is_refused = second.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    rig.fake->release_hangs();
    expect(first.get().empty(), "the first one goes on");
    expect(contains(second.get(), kTwoThreads) && is_refused, "the second one is told why at once");
  });
}

TEST_CASE("NcclCommunicator: two threads on one communicator never meet inside NCCL") {
  Rig rig;
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream) {
    const auto buffer = comm.allocate(64);
    TensorView view;
    view.data = buffer->data();
    view.count = 16;
    view.device = Device{Device::Kind::kCuda, 0};
    const auto call = [&] {
      for (int i = 0; i < 50; ++i) {
        std::string why;
        test::code_of([&] { comm.all_reduce(view, ReduceOp::kMax, {}); }, &why);
        expect(why.empty() || contains(why, kTwoThreads), why);
      }
    };
    std::thread other(call);
    call();
    other.join();
    comm.barrier({});  // the buffer is freed before the communicator
  });
  CHECK(rig.fake->num_violations() == 0);
}

TEST_CASE("NcclCommunicator: a healthy run asks nothing of the store after set-up") {
  Rig rig;
  const auto patient = [](NcclOptions& options) {
    // So long, because a barrier is slow on a busy machine.
    options.peer_check_interval = std::chrono::minutes(1);
  };
  rig.run_with(2, patient, [&](NcclCommunicator& comm, Stream) {
    comm.barrier({});
    const long before = rig.store.num_requests();
    for (int i = 0; i < 20; ++i) comm.barrier({});
    expect(rig.store.num_requests() == before, "no request");
    comm.barrier({});
  });
}

TEST_CASE("NcclCommunicator: the store is left alone while an operation is young") {
  Rig rig;
  const auto patient = [](NcclOptions& options) {
    options.blocking_wait = true;
    options.peer_check_interval = milliseconds(60'000);
  };
  std::barrier both(2);
  rig.run_with(2, patient, [&](NcclCommunicator& comm, Stream) {
    both.arrive_and_wait();  // both ranks have been set up
    const long before = rig.store.num_requests();
    both.arrive_and_wait();
    // Rank 0 waits meanwhile, and its watchdog looks many times.
    if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(150));
    comm.barrier({});
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

TEST_CASE("NcclCommunicator: a device that can't be selected ends the communicator, and is told") {
  for (const char* function : {"get_device", "event_create"}) {
    Rig rig;
    rig.run_communicators(2, [&](NcclCommunicator& comm, Stream) {
      if (comm.rank() == 1) {  // rank 1 waits for rank 0, whose operation never starts
        const Error error = error_of([&] { comm.barrier({}); });
        expect(error.code() == ErrorCode::kPeerLost, error.what());
        expect(contains(error.what(), "rank 0 gave up"), error.what());
        return;
      }
      while (!rig.fake->num_running(1)) std::this_thread::yield();
      rig.fake_cuda->fail(function, 101);
      const Error error = error_of([&] { comm.barrier({}); });
      rig.fake_cuda->succeed_again(function);
      expect(error.code() == ErrorCode::kSystem, error.what());
      expect(contains(error.what(), "rank 0: ") && contains(error.what(), "fake CUDA error 101"),
             error.what());
      expect(error_of([&] { comm.barrier({}); }).what() == std::string(error.what()),
             "it stays failed");
    });
    CHECK(rig.fake->num_aborts() == 2);
  }
}

TEST_CASE("NcclCommunicator: a device that can't be selected in wait() ends the communicator") {
  Rig rig;
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, 0, DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    const CallOptions async{.async = true};
    const auto work = comm.all_reduce(array.view(), ReduceOp::kMax, async);
    rig.fake_cuda->fail("get_device", 101);
    const Error error = error_of([&] { work->wait(); });
    rig.fake_cuda->succeed_again("get_device");
    expect(contains(error.what(), "cudaGetDevice"), error.what());
    expect(error_of([&] { comm.barrier({}); }).what() == std::string(error.what()),
           "it stays failed");
  });
  CHECK(rig.fake->num_aborts() == 1);
}

TEST_CASE("NcclCommunicator: an operation becomes part of the CUDA graph that is captured") {
  Rig rig;
  rig.run_with(2, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, comm.rank(), DType::kFloat32, 2);
    array.write({1, 2});
    std::optional<FakeCuda::Graph> graph;
    // One rank after the other, because the fake captures one graph at a time.
    for (const int turn : {0, 1}) {
      comm.barrier({});
      if (turn != comm.rank()) continue;
      expect(!comm.captures_graph(), "nothing is captured yet");
      rig.fake_cuda->begin_capture(stream);
      expect(comm.captures_graph(), "what starts now becomes part of the graph");
      const auto work =
          comm.all_reduce(array.view(), ReduceOp::kSum, within(milliseconds(1), true));
      expect(work->is_completed(), "nobody waits for it");
      work->wait();
      for (const char* refused : {"barrier", "allocate", "split"}) {
        const Error error = error_of([&] {
          if (refused[0] == 'b') comm.barrier({});
          if (refused[0] == 'a') comm.allocate(8);
          comm.split({comm.rank()}, {.name = "g"});
        });
        expect(error.code() == ErrorCode::kInvalidArgument, error.what());
        expect(contains(error.what(), refused + std::string(": the caller's stream captures")),
               error.what());
      }
      graph = rig.fake_cuda->end_capture();
    }
    comm.barrier({});  // the watchdog has looked meanwhile
    expect(graph.has_value(), "nothing broke the capture");
    for (int i = 0; i < 2; ++i) rig.fake_cuda->replay(*graph, stream);
    expect(array.read() == std::vector<double>({4, 8}), "each replay is a sum of two ranks");
    comm.barrier({});
  });
}

TEST_CASE(
    "NcclCommunicator: a call that would break a CUDA graph is refused, and the communicator stays "
    "good") {
  Rig rig;
  rig.run(1, [&](NcclOptions options) {
    void* const stream = options.current_stream(0);
    void* current = stream;
    options.current_stream = [&current](int) { return current; };
    Stream other = nullptr;
    rig.cuda->stream_create_high_priority(&other);
    const auto comm = rig.join(options);
    DeviceArray array(rig, static_cast<Stream>(stream), 0, DType::kFloat32, 2);
    array.write({1, 2});
    const auto largest = [&] {
      return comm->all_reduce(array.view(), ReduceOp::kMax, within(milliseconds(60'000), true));
    };
    const auto expect_refused = [](const Error& error, const char* why) {
      expect(error.code() == ErrorCode::kInvalidArgument, error.what());
      expect(contains(error.what(), why), error.what());
    };
    const auto before = largest();
    rig.fake_cuda->begin_capture(static_cast<Stream>(stream));
    expect_refused(error_of([&] { before->wait(); }), "began before the CUDA graph");
    const auto captured = largest();
    captured->wait();
    current = other;
    expect_refused(error_of(largest), "is captured on another stream");
    current = stream;
    expect(rig.fake_cuda->end_capture().has_value(), "nothing broke the capture");
    captured->wait();  // a captured operation has nothing to wait for
    before->wait();
    largest()->wait();  // reuses the events of the capture
    comm->barrier({});
    expect(array.read() == std::vector<double>({1, 2}), "the maximum of one rank");
    rig.cuda->stream_destroy(other);
  });
}

TEST_CASE("NcclCommunicator: an abort that waits for a CUDA graph is left behind, and no hang") {
  Rig rig;
  std::optional<FakeCuda::Graph> graph;
  const auto change = [](NcclOptions& options) {
    options.abort_timeout = milliseconds(200);
    options.on_hung_abort = [](std::string_view message) {
      throw std::runtime_error(std::string(message));
    };
  };
  rig.run_with(1, change, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, 0, DType::kFloat32, 2);
    array.write({1, 2});
    rig.fake_cuda->begin_capture(stream);
    comm.all_reduce(array.view(), ReduceOp::kMax, {});
    graph = rig.fake_cuda->end_capture();
    comm.abort("enough");
  });
  CHECK(rig.fake->num_live_comms() == 1);
  graph.reset();
  while (rig.fake->num_live_comms() > 0) std::this_thread::yield();
  rig.fake_cuda->forget_live_objects();
}

TEST_CASE("NcclCommunicator: a rank in a CUDA graph hears that another one has given up") {
  Rig rig;
  std::barrier both(2);
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream stream) {
    if (comm.rank() == 0) {
      DeviceArray array(rig, stream, 0, DType::kFloat32, 2);
      array.write({1, 2});
      rig.fake_cuda->begin_capture(stream);
      comm.all_reduce(array.view(), ReduceOp::kSum, {});
      rig.fake_cuda->end_capture();
    }
    both.arrive_and_wait();
    if (comm.rank() == 1) return comm.abort("enough");
    while (rig.fake->num_aborts() < 2) std::this_thread::yield();
    const Error error = error_of([&] { comm.barrier({}); });
    // The watchdog may not have seen yet that the captured operation counts as done.
    expect(contains(error.what(), ": rank 1 gave up: rank 1 was aborted: enough"), error.what());
  });
}

TEST_CASE("NcclCommunicator: two threads never launch on a device at once, where NCCL orders it") {
  ::setenv(env::kNcclLaunchOrderImplicit, "1", 1);
  Rig rig;
  rig.run(1, [&](NcclOptions options) {
    const auto world = rig.join(options);
    const auto group = world->split({0}, {.name = "g"});
    const auto launch = [&](Communicator& comm) {
      rig.cuda->set_device(options.device);
      for (int i = 0; i < 50; ++i) comm.barrier();
    };
    std::thread other([&] { launch(*group); });
    launch(*world);
    other.join();
  });
  ::unsetenv(env::kNcclLaunchOrderImplicit);
  CHECK(rig.fake->num_violations() == 0);
}

}  // namespace
}  // namespace ddprun::test
