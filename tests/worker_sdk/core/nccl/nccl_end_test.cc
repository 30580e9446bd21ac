// SPDX-License-Identifier: Apache-2.0
// Memory of an nccl communicator and its end. Every failure of them is injected into the fake.
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/log_lines.h"
#include "tests/worker_sdk/core/nccl/lone_child.h"
#include "tests/worker_sdk/core/nccl/rig.h"

namespace ddprun::test {
namespace {

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

TEST_CASE("NcclCommunicator: memory that can't be zeroed is an error, and is given back") {
  Rig rig;
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream) {
    rig.fake_cuda->fail("memory_set", 700);
    const Error error = error_of([&] { comm.allocate(1000); });
    expect(error.code() == ErrorCode::kSystem, error.what());
    expect(contains(error.what(), "rank 0: zeroing a buffer: fake CUDA error 700"), error.what());
    expect(rig.fake->num_live_buffers() == 0 && rig.fake->num_registered() == 0, "given back");
    rig.fake_cuda->succeed_again("memory_set");
    comm.barrier({});
    comm.allocate(1000);
  });
}

TEST_CASE("NcclCommunicator: memory goes when the operations under way on it have ended") {
  const bool aborted = GENERATE(false, true);
  CAPTURE(aborted);
  Rig rig;
  std::atomic<bool> freeing{false};
  std::atomic<bool> waits{false};
  std::barrier both(2);
  rig.run(2, [&](NcclOptions options) {
    const auto stream = options.current_stream(options.device);
    if (options.rank == 0) {
      options.current_stream = [&, stream](int) {  // called when the freeing begins
        if (freeing) waits = true;
        return stream;
      };
    }
    const auto comm = rig.join(options);
    auto buffer = comm->allocate(64);
    both.arrive_and_wait();  // an earlier abort would be an error of the other rank's allocate()
    TensorView view{.data = buffer->data(), .count = 16};
    view.device = Device{Device::Kind::kCuda, options.device};
    const CallOptions async{.async = true};
    if (options.rank == 0) {
      if (aborted) rig.fake->hang_aborts();
      comm->all_reduce(view, ReduceOp::kSum, async);
      freeing = true;
      if (aborted) comm->abort("enough");
      buffer.reset();
      waits = true;  // set even if nothing waited
      freeing = false;
    } else {
      while (!waits) std::this_thread::yield();
      rig.fake->release_aborts();
      if (!aborted) comm->all_reduce(view, ReduceOp::kSum, async);
    }
  });
  CHECK(rig.fake->num_violations() == 0);
  CHECK(rig.fake->num_live_buffers() == 0);
}

TEST_CASE("NcclCommunicator: memory goes when the caller's current stream has passed it") {
  std::atomic<bool> written{false};
  Rig rig;
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream stream) {
    auto buffer = comm.allocate(64);
    auto* const first = static_cast<char*>(buffer->data());
    rig.fake_cuda->enqueue(stream, [&] {  // this kernel takes longer than the freeing
      for (int i = 0; i < 1'000; ++i) std::this_thread::yield();
      *first = 1;
      written = true;
    });
    buffer.reset();
    expect(written, "the kernel ran on memory that was there");
    rig.cuda->stream_synchronize(stream);
  });
}

TEST_CASE(
    "NcclCommunicator: memory that a hung abort leaves in use is not freed, and that is said") {
  Rig rig;
  LogLines log;
  const auto begin = std::chrono::steady_clock::now();
  rig.run(2, [&](NcclOptions options) {
    options.abort_timeout = milliseconds(100);
    options.on_hung_abort = [](std::string_view) {};
    auto comm = rig.join(options);
    comm->barrier({});
    if (options.rank == 1) return;
    auto buffer = comm->allocate(64);
    TensorView view{.data = buffer->data(), .count = 16};
    view.device = Device{Device::Kind::kCuda, options.device};
    rig.fake->hang_aborts();
    comm->all_reduce(view, ReduceOp::kSum, {.async = true});
    comm->abort("enough");
    buffer.reset();
    expect(rig.fake->num_live_buffers() == 1, "still there");
    comm.reset();
  });
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10'000));
  CHECK(!log.await("rank 0: a buffer of 64 bytes on device 0 is still used by operations that do "
                   "not end; it stays allocated until this process ends")
             .empty());
  rig.fake->release_aborts();
  while (rig.fake->num_live_comms() > 0) std::this_thread::yield();
  rig.fake_cuda->forget_live_objects();
  rig.fake->forget_live_buffers();
}

// Rank 0 is in an operation that rank 1 never joins, and gives up. The abort hangs.
std::unique_ptr<NcclCommunicator> failed_with(Rig& rig, const NcclOptions& options,
                                              std::vector<unsigned char>& memory) {
  auto comm = rig.join(options);
  comm->barrier({});
  if (options.rank == 1) return nullptr;
  TensorView view{.data = memory.data(), .count = memory.size(), .dtype = DType::kUInt8};
  view.device = Device{Device::Kind::kCuda, options.device};
  rig.fake->hang_aborts();
  comm->all_reduce(view, ReduceOp::kSum, {.async = true});
  comm->abort("enough");
  return comm;
}

TEST_CASE("NcclCommunicator: memory that it keeps goes when nothing writes to it any more") {
  constexpr unsigned char kOwn = 1;
  Rig rig;
  rig.run(2, [&](const NcclOptions& options) {
    unsigned char last_value = kOwn;
    const auto note = [&](std::vector<unsigned char>* memory) {
      last_value = memory->back();
      delete memory;
    };
    std::shared_ptr<std::vector<unsigned char>> memory(
        new std::vector<unsigned char>(1'000'000, kOwn), note);
    auto comm = failed_with(rig, options, *memory);
    if (!comm) return;
    const std::weak_ptr<void> kept = memory;
    comm->keep(std::move(memory));
    expect(!kept.expired(), "it stays while the abort hangs");
    rig.fake->release_aborts();
    comm.reset();
    expect(kept.expired(), "nothing keeps it any more");
    expect(last_value != kOwn, "the aborted operation had written its rubbish before");
  });
}

TEST_CASE("NcclCommunicator: memory that it keeps is never freed if the abort hangs") {
  Rig rig;
  rig.run(2, [&](NcclOptions options) {
    options.abort_timeout = milliseconds(100);
    options.on_hung_abort = [](std::string_view) {};
    auto memory = std::make_shared<std::vector<unsigned char>>(1'000);
    auto comm = failed_with(rig, options, *memory);
    if (!comm) return;
    const std::weak_ptr<void> kept = memory;
    comm->keep(std::move(memory));
    comm.reset();
    expect(!kept.expired(), "the operation may still write there");
  });
  rig.fake->release_aborts();
  while (rig.fake->num_live_comms() > 0) std::this_thread::yield();
  rig.fake_cuda->forget_live_objects();
}

TEST_CASE("NcclCommunicator: a healthy one is flushed and destroyed, not aborted") {
  Rig rig;
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream) { comm.barrier({}); });
  CHECK(rig.fake->num_aborts() == 0);
  CHECK(rig.fake->num_live_comms() == 0);
}

TEST_CASE("NcclCommunicator: destroyed while a peer is missing, it aborts after abort_timeout") {
  Rig rig;
  rig.run(2, [&](NcclOptions options) {
    if (options.rank == 0) options.abort_timeout = milliseconds(500);
    auto comm = rig.join(options);
    const auto stream = static_cast<Stream>(options.current_stream(options.device));
    DeviceArray array(rig, stream, options.device, DType::kFloat32, 4);
    array.write({1, 2, 3, 4});
    const CallOptions async{.async = true};
    if (options.rank == 0) comm->all_reduce(array.view(), ReduceOp::kSum, async);
    comm.reset();
  });
  CHECK(rig.fake->num_aborts() == 1);
}

TEST_CASE("NcclCommunicator: ncclCommDestroy that hangs is left behind at its deadline") {
  Rig rig;
  const auto begin = std::chrono::steady_clock::now();
  rig.run(1, [&](NcclOptions options) {
    options.destroy_timeout = milliseconds(200);
    options.on_hung_abort = [](std::string_view) { throw std::runtime_error("nothing to abort"); };
    auto comm = rig.join(options);
    comm->barrier({});
    rig.fake->hang_next(0, "comm_destroy");
    comm.reset();
    expect(rig.fake->num_live_comms() == 1, "the call is still inside");
  });
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10'000));
  CHECK(rig.fake->num_aborts() == 0);
  CHECK(rig.fake_cuda->num_live_objects() > 0);  // freeing them might hang, too
  rig.fake->release_hangs();
  while (rig.fake->num_live_comms() > 0) std::this_thread::yield();
  rig.fake_cuda->forget_live_objects();
}

TEST_CASE("NcclCommunicator: an abort that hangs is reported at its deadline") {
  Rig rig;
  std::atomic<int> num_reports{0};
  const auto begin = std::chrono::steady_clock::now();
  rig.run(1, [&](NcclOptions options) {
    options.abort_timeout = milliseconds(100);
    options.on_hung_abort = [&](std::string_view message) {
      num_reports += contains(std::string(message), "ncclCommAbort did not return within ");
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
  rig.fake_cuda->forget_live_objects();  // the stream and events were left alone on purpose
}

// A store whose calls never return, whatever their time-out is.
class HungStore final : public SharedStore {
 public:
  void set(std::string_view, std::string_view) override { hang(); }
  std::string get(std::string_view) override { hang(); }
  std::int64_t add(std::string_view, std::int64_t) override { hang(); }
  bool check(const std::vector<std::string>&) override { hang(); }
  void append(std::string_view, std::string_view) override { hang(); }
  std::vector<std::string> multi_get(const std::vector<std::string>&) override { hang(); }

 private:
  [[noreturn]] static void hang() {
    for (;;) ::pause();
  }
};

// Tasks that come onto the default stream from now on never run.
void keep_device_busy(Rig& rig) {
  rig.fake_cuda->enqueue(nullptr, [] {
    for (;;) ::pause();
  });
}

TEST_CASE("NcclCommunicator: the defaults leave 15 s from a failure to the end of the process") {
  const NcclOptions options;
  CHECK(options.abort_timeout + options.destroy_timeout + options.free_timeout +
            options.exit_timeout <=
        std::chrono::seconds(15));
}

TEST_CASE("NcclCommunicator: the process is gone in its time with a hung store and a hung abort") {
  const bool store_connects = GENERATE(true, false);
  const auto [status, took] = run_child([&](Rig& rig, NcclOptions& options) {
    options.abort_timeout = milliseconds(700);
    options.missing_ranks_grace = milliseconds(0);
    options.blocking_wait = true;
    options.connect_store = [store_connects]() -> std::unique_ptr<store::Store> {
      while (!store_connects) ::pause();
      return std::make_unique<HungStore>();
    };
    auto comm = rig.join(options);
    rig.fake->hang_aborts();
    keep_device_busy(rig);
    DeviceArray array(rig, nullptr, options.device, DType::kFloat32, 4);
    CallOptions call;
    call.timeout = milliseconds(50);
    try {
      comm->all_reduce(array.view(), ReduceOp::kMax, call);
    } catch (const Error&) {
    }
    comm.reset();
    std::exit(3);  // this line is not reached
  });
  CHECK(status == 75);
  CHECK(took < milliseconds(3'000));
}

TEST_CASE("NcclCommunicator: destroy and exit handlers that hang: the process goes") {
  const auto [status, took] = run_child([&](Rig& rig, NcclOptions& options) {
    options.abort_timeout = options.destroy_timeout = milliseconds(100);
    options.free_timeout = options.exit_timeout = milliseconds(100);
    std::atexit([] {
      for (;;) ::pause();
    });
    auto comm = rig.join(options);
    comm->barrier({});
    rig.fake->hang_next(0, "comm_destroy");
    comm.reset();
    std::exit(7);
  });
  CHECK(status == 7);  // the program's own code
  CHECK(took < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: an exit handler that hangs after a failure is not waited for") {
  const auto [status, took] = run_child([&](Rig& rig, NcclOptions& options) {
    options.exit_timeout = milliseconds(100);
    std::atexit([] {
      for (;;) ::pause();
    });
    auto comm = rig.join(options);
    comm->abort("enough");
    comm.reset();
    std::exit(3);
  });
  CHECK(status == 3);
  CHECK(took < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: a hung abort ends the process with status 75 by default") {
  const auto [status, took] = run_child([&](Rig& rig, NcclOptions& options) {
    options.abort_timeout = milliseconds(50);
    auto comm = rig.join(options);
    rig.fake->hang_aborts();
    comm->abort("enough");
    comm.reset();
  });
  CHECK(status == 75);
}

// A listener to failures that does not return for 20 s, or until this object is gone.
class HungListener {
 public:
  explicit HungListener(NcclOptions& options) : progress_(std::make_shared<WorkerProgress>()) {
    options.progress = progress_;
    progress_->on_operation_failed([this, end = end_.get_future().share()](const auto&) {
      called_ = true;
      end.wait_for(std::chrono::seconds(20));
    });
  }
  ~HungListener() {
    end_.set_value();
    progress_->on_operation_failed(nullptr);  // returns when the call is over
  }
  HungListener(const HungListener&) = delete;
  HungListener& operator=(const HungListener&) = delete;
  bool was_called() const { return called_; }

 private:
  std::promise<void> end_;
  std::atomic<bool> called_{false};
  const std::shared_ptr<WorkerProgress> progress_;
};

TEST_CASE("NcclCommunicator: a flight recorder that hangs leaves the abort its time") {
  Rig rig;
  LogLines log;
  rig.run(2, [&](NcclOptions options) {
    if (options.rank == 1) {
      rig.join(options);
      return;
    }
    options.blocking_wait = true;
    options.abort_timeout = milliseconds(1'000);
    options.on_hung_abort = [](std::string_view message) {
      throw std::runtime_error(std::string(message));
    };
    HungListener listener(options);
    auto comm = rig.join(options);
    CallOptions call;
    call.timeout = milliseconds(50);
    const Error error = error_of([&] { comm->barrier(call); });
    expect(error.code() == ErrorCode::kTimeout, error.what());
    const auto begin = std::chrono::steady_clock::now();
    comm.reset();
    expect(std::chrono::steady_clock::now() - begin < milliseconds(10'000), "in its time");
    expect(listener.was_called(), "somebody listened");
    expect(rig.fake->num_aborts() >= 1, "the abort was called");
  });
  CHECK(!log.await("rank 0: the flight recorder was not written in time").empty());
}

TEST_CASE("NcclCommunicator: store and flight recorder hang: the abort is called, and ends it") {
  const auto [status, took] = run_child([&](Rig& rig, NcclOptions& options) {
    options.abort_timeout = milliseconds(1'000);
    // The abort must not take the whole of this time.
    options.missing_ranks_grace = milliseconds(2'000);
    options.exit_timeout = milliseconds(100);
    options.blocking_wait = true;
    options.connect_store = [] { return std::make_unique<HungStore>(); };
    options.on_hung_abort = [](std::string_view) { ::_exit(75); };
    auto* const listener = new HungListener(options);
    auto comm = rig.join(options);
    keep_device_busy(rig);
    DeviceArray array(rig, nullptr, options.device, DType::kFloat32, 4);
    CallOptions call;
    call.timeout = milliseconds(50);
    error_of([&] { comm->all_reduce(array.view(), ReduceOp::kMax, call); });
    comm.reset();
    ::_exit(listener->was_called() && rig.fake->num_aborts() == 1 ? 3 : 4);
  });
  CHECK(status == 3);
  CHECK(took < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: an abort that hangs had the time that the message says") {
  const auto [status, took] = run_child([&](Rig& rig, NcclOptions& options) {
    options.abort_timeout = milliseconds(1'000);
    options.blocking_wait = true;
    options.connect_store = [] { return std::make_unique<HungStore>(); };
    options.on_hung_abort = [](std::string_view message) {
      const std::string before = "ncclCommAbort did not return within ";
      const std::string text(message);
      const auto at = text.find(before);
      const int waited = at == text.npos ? -1 : std::atoi(text.c_str() + at + before.size());
      ::_exit(waited >= 250 ? 3 : 4);  // it waited for a quarter of the time, or longer
    };
    new HungListener(options);
    auto comm = rig.join(options);
    rig.fake->hang_aborts();
    keep_device_busy(rig);
    DeviceArray array(rig, nullptr, options.device, DType::kFloat32, 4);
    CallOptions call;
    call.timeout = milliseconds(50);
    error_of([&] { comm->all_reduce(array.view(), ReduceOp::kMax, call); });
    comm.reset();
  });
  CHECK(status == 3);
}

}  // namespace
}  // namespace ddprun::test
