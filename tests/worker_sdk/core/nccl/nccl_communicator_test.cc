// SPDX-License-Identifier: Apache-2.0
// The nccl communicator's promises. Compiled twice: over the fake, and (label gpu) over real NCCL.
#include "worker_sdk/core/nccl/nccl_communicator.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/worker_sdk/core/exchange_checks.h"
#include "tests/worker_sdk/core/nccl/checked_calls.h"
#include "tests/worker_sdk/core/nccl/rig.h"
#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun::test {
namespace {

constexpr DType kAllDTypes[] = {DType::kFloat32,    DType::kFloat64,   DType::kFloat16,
                                DType::kBFloat16,   DType::kInt8,      DType::kUInt8,
                                DType::kInt32,      DType::kInt64,     DType::kBool,
                                DType::kFloat8E4M3, DType::kFloat8E5M2};

// Small whole numbers, different on each rank, exact in every dtype and reduction.
double value_of(int rank, std::size_t index) {
  return 1.0 + rank % 2 + static_cast<double>(index % 2);
}

std::vector<double> values_of(int rank, std::size_t count) {
  std::vector<double> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(value_of(rank, i));
  return values;
}

double reduced(ReduceOp op, int size, std::size_t index) {
  double value = value_of(0, index);
  for (int rank = 1; rank < size; ++rank) value = combine(op, value, value_of(rank, index));
  return op == ReduceOp::kAverage ? value / size : value;
}

TEST_CASE("NcclCommunicator: operations are counted in the progress page") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 1);
  const auto progress = std::make_shared<WorkerProgress>();
  const auto counted = [&](NcclOptions& options) { options.progress = progress; };
  rig.run_with(1, counted, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, device_of(comm, rig), DType::kFloat32, 4);
    comm.all_reduce(array.view(), ReduceOp::kSum, {});
    comm.broadcast(array.view(), 0, {});
    array.read();
    expect(progress->page().collectives_begun == 2, "two were enqueued");
    expect(
        progress->page().last_collective == static_cast<std::uint64_t>(CollectiveKind::kBroadcast),
        "the last one's kind");
    expect(comm.progress() == progress.get(), "progress()");
  });
  // All are counted at the latest when the communicator is destroyed.
  CHECK(progress->page().collectives_done == 2);
}

// Whether NCCL has kernels for floats of 8 bits: since 2.24, from compute capability 9.0 on.
bool has_float8(Rig& rig) {
  int major = 9, minor = 0;
  if (!rig.fake) rig.cuda->compute_capability(0, &major, &minor);
  return major >= 9 && rig.nccl->version() >= 22400;
}

TEST_CASE("NcclCommunicator: all_reduce of every dtype and reduction, 1 to 4 ranks") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 1);
  for (const int size : {1, 2, 4}) {
    if (size > rig.max_ranks()) break;
    const auto own_keys = [size](NcclOptions& options) {
      options.key_prefix = "size" + std::to_string(size) + "/";
    };
    rig.run_with(size, own_keys, [&](NcclCommunicator& comm, Stream stream) {
      for (const DType dtype : kAllDTypes) {
        const bool is_float8 = dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2;
        if (is_float8 && !has_float8(rig)) continue;
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                  ReduceOp::kProduct, ReduceOp::kAverage}) {
          const bool whole = dtype == DType::kFloat32 || dtype == DType::kFloat64;
          if (op == ReduceOp::kAverage && !whole) continue;
          // This dtype can't hold 36.
          if (op == ReduceOp::kProduct && dtype == DType::kFloat8E5M2) continue;
          for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
            DeviceArray array(rig, stream, device_of(comm, rig), dtype, count);
            array.write(values_of(comm.rank(), count));
            comm.all_reduce(array.view(), op, {});
            const auto result = array.read();
            for (std::size_t i = 0; i < count; ++i) {
              const double all = reduced(op, size, i);
              expect(result[i] == (dtype == DType::kBool ? all != 0 : all),
                     std::string(to_string(dtype)) + " " + to_string(op) + " element " +
                         std::to_string(i) + " is " + std::to_string(result[i]));
            }
          }
        }
      }
    });
  }
}

TEST_CASE("NcclCommunicator: a minimum and a maximum pass NaN over, as on the host") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream stream) {
    expect_nan_passed_over(rig, comm, stream, device_of(comm, rig));
  });
}

TEST_CASE("NcclCommunicator: broadcast from each root") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream stream) {
    for (int root = 0; root < 2; ++root) {
      DeviceArray array(rig, stream, device_of(comm, rig), DType::kInt64, 77);
      array.write(values_of(comm.rank(), 77));
      comm.broadcast(array.view(), root, {});
      expect(array.read() == values_of(root, 77), "the root's values");
    }
  });
}

TEST_CASE("NcclCommunicator: all_gather and reduce_scatter, apart and in place") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  const int size = std::min(rig.max_ranks(), 4);
  const std::size_t part = 50;
  const std::size_t whole = part * static_cast<std::size_t>(size);
  rig.run_communicators(size, [&](NcclCommunicator& comm, Stream stream) {
    const int device = device_of(comm, rig);
    const auto own = static_cast<std::size_t>(comm.rank()) * part;
    std::vector<double> gathered;
    for (int rank = 0; rank < size; ++rank) {
      for (const double value : values_of(rank, part)) gathered.push_back(value);
    }
    for (const bool in_place : {false, true}) {
      DeviceArray big(rig, stream, device, DType::kFloat32, whole);
      DeviceArray small(rig, stream, device, DType::kFloat32, part);
      std::vector<double> initial(whole, -1.0);
      const auto mine = values_of(comm.rank(), part);
      std::copy(mine.begin(), mine.end(), initial.begin() + static_cast<std::ptrdiff_t>(own));
      big.write(initial);
      small.write(mine);
      comm.all_gather(in_place ? big.part(own, part) : small.view(), big.view(), {});
      expect(big.read() == gathered, "all parts in rank order");

      big.write(values_of(comm.rank(), whole));
      comm.reduce_scatter(big.view(), in_place ? big.part(own, part) : small.view(), ReduceOp::kSum,
                          {});
      const auto big_result = big.read();
      const auto small_result = small.read();
      for (std::size_t i = 0; i < part; ++i) {
        const double value = in_place ? big_result[own + i] : small_result[i];
        expect(value == reduced(ReduceOp::kSum, size, own + i), "the sum of this rank's part");
      }
    }
  });
}

TEST_CASE("NcclCommunicator: send and recv are matched in order") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream stream) {
    const int device = device_of(comm, rig);
    DeviceArray first(rig, stream, device, DType::kInt32, 10);
    DeviceArray second(rig, stream, device, DType::kInt32, 10);
    first.write(std::vector<double>(10, comm.rank() == 0 ? 5.0 : 0.0));
    second.write(std::vector<double>(10, comm.rank() == 0 ? 6.0 : 0.0));
    if (comm.rank() == 0) {
      comm.send(first.view(), 1, {});
      comm.send(second.view(), 1, {});
      comm.recv(first.view(), 1, {});
      expect(first.read() == std::vector<double>(10, 6.0), "what rank 1 sent back");
    } else {
      comm.recv(first.view(), 0, {});
      comm.recv(second.view(), 0, {});
      expect(first.read() == std::vector<double>(10, 5.0), "the first message first");
      expect(second.read() == std::vector<double>(10, 6.0), "the second message second");
      comm.send(second.view(), 0, {});
    }
  });
}

TEST_CASE("NcclCommunicator: reduce, groups and exchanges") {
  const int size = GENERATE(1, 2, 8);
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, size);
  rig.run_communicators(size, [&](NcclCommunicator& comm, Stream stream) {
    check_exchange(comm, [&](DType dtype, std::size_t count) {
      return DeviceArray(rig, stream, device_of(comm, rig), dtype, count);
    });
  });
}

TEST_CASE("NcclCommunicator: operations wait for the caller's stream, and it for them") {
  const bool told_later = GENERATE(false, true);  // whether follow_stream() names the stream later
  CAPTURE(told_later);
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run(2, [&](NcclOptions options) {
    const CurrentStream current = options.current_stream;
    const auto stream = static_cast<Stream>(current(options.device));
    if (told_later) options.current_stream = {};
    const auto joined = rig.join(options);
    NcclCommunicator& comm = *joined;
    comm.follow_stream(current);
    comm.follow_stream(
        [](int) -> void* { throw std::runtime_error("asked, though one is known"); });
    const std::size_t count = std::size_t{1} << 18;
    DeviceArray array(rig, stream, device_of(comm, rig), DType::kUInt8, count);
    DeviceArray copy(rig, stream, device_of(comm, rig), DType::kUInt8, count);
    array.write(std::vector<double>(count, 9.0));
    std::atomic<bool> released{false};
    if (rig.fake_cuda) {  // holds up the stream until everything has been queued
      rig.fake_cuda->enqueue(stream, [&released] {
        while (!released.load()) std::this_thread::yield();
      });
    }
    // All of this is only queued, and nothing blocks this thread until read().
    for (int i = 0; i < 20; ++i) {
      rig.cuda->memory_set(array.view().data, i < 19 ? 7 : 1, count, stream);
    }
    const CallOptions async{.async = true};
    const auto work = comm.all_reduce(array.view(), ReduceOp::kSum, async);
    if (rig.fake_cuda) expect(!work->is_completed(), "it waits for the caller's stream");
    work->wait();
    rig.cuda->memory_copy(copy.view().data, array.view().data, count, stream);
    released.store(true);
    expect(copy.read() == std::vector<double>(count, 2.0), "1 + 1 in every element");
    expect(work->is_completed(), "it is complete");
  });
}

TEST_CASE("NcclCommunicator: many asynchronous operations keep their order") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray array(rig, stream, device_of(comm, rig), DType::kInt64, 8);
    array.write(std::vector<double>(8, 1.0));
    const CallOptions async{.async = true};
    std::vector<WorkPtr> works;
    for (int i = 0; i < 30; ++i)
      works.push_back(comm.all_reduce(array.view(), ReduceOp::kSum, async));
    works.back()->wait();
    expect(array.read() == std::vector<double>(8, 1073741824.0), "2^30");
    for (const auto& work : works) expect(work->is_completed(), "each is complete");
  });
}

TEST_CASE("NcclCommunicator: no rank leaves a barrier before the last one has come") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  const int size = std::min(rig.max_ranks(), 4);
  std::atomic<int> arrived{0};
  rig.run_communicators(size, [&](NcclCommunicator& comm, Stream) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      comm.barrier({});
      expect(arrived.load() >= round * size, "all ranks are in round " + std::to_string(round));
      comm.barrier({});
    }
  });
}

TEST_CASE("NcclCommunicator: allocate gives zeroed, aligned memory that operations take") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run_communicators(2, [&](NcclCommunicator& comm, Stream stream) {
    const auto buffer = comm.allocate(4000);
    expect(buffer->size_bytes() == 4000, "the size that was asked for");
    expect(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64 == 0, "64-byte alignment");
    TensorView view;
    view.data = buffer->data();
    view.count = 1000;
    view.device = Device{Device::Kind::kCuda, device_of(comm, rig)};
    DeviceArray copy(rig, stream, view.device.index, DType::kFloat32, 1000);
    rig.cuda->memory_copy(copy.view().data, view.data, 4000, stream);
    expect(copy.read() == std::vector<double>(1000, 0.0), "zeros");
    copy.write(values_of(comm.rank(), 1000));
    rig.cuda->memory_copy(view.data, copy.view().data, 4000, stream);
    comm.all_reduce(view, ReduceOp::kSum, {});
    rig.cuda->memory_copy(copy.view().data, view.data, 4000, stream);
    const auto result = copy.read();
    for (std::size_t i = 0; i < 1000; ++i) {
      expect(result[i] == reduced(ReduceOp::kSum, 2, i), "the sum");
    }
  });
}

TEST_CASE("NcclCommunicator: two communicators live side by side") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run(2, [&](NcclOptions options) {
    const auto first = rig.join(options);
    options.key_prefix = "round1/comm1/";
    const auto second = rig.join(options);
    const auto stream = static_cast<Stream>(options.current_stream(options.device));
    DeviceArray array(rig, stream, options.device, DType::kInt32, 100);
    array.write(std::vector<double>(100, 1.0));
    for (int i = 0; i < 3; ++i) {
      first->all_reduce(array.view(), ReduceOp::kSum, {});
      second->all_reduce(array.view(), ReduceOp::kSum, {});
    }
    expect(array.read() == std::vector<double>(100, 64.0), "2^6");
  });
}

TEST_CASE("NcclCommunicator: a bad argument is named, and the communicator stays good") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 1);
  rig.run_communicators(1, [&](NcclCommunicator& comm, Stream stream) {
    const int device = device_of(comm, rig);
    DeviceArray array(rig, stream, device, DType::kFloat32, 8);
    DeviceArray ints(rig, stream, device, DType::kInt32, 8);
    TensorView on_cpu = array.view();
    on_cpu.device = Device{};
    TensorView elsewhere = array.view();
    elsewhere.device.index = device + 1;
    TensorView endless = array.view();  // with an overflow these would be 4 bytes
    endless.count = std::numeric_limits<std::size_t>::max() / 4 + 2;
    TensorView nowhere = array.view();
    nowhere.data = nullptr;
    const struct {
      const char* expected;
      std::function<void()> call;
    } cases[] = {
        {"the buffer is on the CPU", [&] { comm.all_reduce(on_cpu, ReduceOp::kSum, {}); }},
        {"the buffer is on GPU", [&] { comm.all_reduce(elsewhere, ReduceOp::kSum, {}); }},
        {"no buffer has 4611686018427387905 elements",
         [&] { comm.all_reduce(endless, ReduceOp::kSum, {}); }},
        {"the buffer has no memory", [&] { comm.broadcast(nowhere, 0, {}); }},
        {"root 1 is not a rank below 1", [&] { comm.broadcast(array.view(), 1, {}); }},
        {"root -1 is not a rank below 1", [&] { comm.broadcast(array.view(), -1, {}); }},
        {"peer 3 is not a rank below 1", [&] { comm.send(array.view(), 3, {}); }},
        {"the peer is this rank itself", [&] { comm.recv(array.view(), 0, {}); }},
        {"NCCL's messages have no tags", [&] { comm.send(array.view(), 0, {.tag = 1}); }},
        {"can't receive from any rank", [&] { comm.recv_any(array.view(), nullptr, {}); }},
        {"differ in type", [&] { comm.all_gather(array.view(), ints.view(), {}); }},
        {"8 elements are not 1 times 4",
         [&] { comm.all_gather(ints.part(0, 4), ints.view(), {}); }},
        {"8 elements are not 1 times 3",
         [&] { comm.reduce_scatter(ints.view(), ints.part(0, 3), ReduceOp::kSum, {}); }},
        {"the buffers overlap", [&] { comm.all_gather(array.part(0, 4), array.part(2, 4), {}); }},
    };
    for (const auto& one : cases) {
      const Error error = error_of(one.call);
      expect(error.code() == ErrorCode::kInvalidArgument, "kInvalidArgument");
      expect(contains(error.what(), one.expected),
             std::string(one.expected) + " in " + error.what());
    }
    array.write(values_of(0, 8));
    comm.all_reduce(array.view(), ReduceOp::kSum, {});
    expect(array.read() == values_of(0, 8), "it still works");
  });
}

TEST_CASE("NcclCommunicator: operations are measured on the device where that is asked for") {
  const bool is_asked = GENERATE(false, true);
  CAPTURE(is_asked);
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  constexpr milliseconds kLate{50};
  std::vector<std::shared_ptr<WorkerProgress>> progress;
  for (int rank = 0; rank < 2; ++rank) progress.push_back(std::make_shared<WorkerProgress>());
  rig.run_with(
      2,
      [&](NcclOptions& options) {
        options.progress = progress[static_cast<std::size_t>(options.rank)];
        options.time_operations = is_asked;
      },
      [&](NcclCommunicator& comm, Stream stream) {
        DeviceArray array(rig, stream, device_of(comm, rig), DType::kFloat32, 8);
        // This delay is what the test measures.
        if (comm.rank() == 1) std::this_thread::sleep_for(kLate);
        comm.all_reduce(array.view(), ReduceOp::kSum);
      });
  const auto first = progress[0]->recorder().entries().at(0);  // rank 0, which waits for rank 1
  const auto late = progress[1]->recorder().entries().at(0);
  CHECK(first.on_device >= late.on_device);
  CHECK(first.on_device >= (is_asked ? kLate / 2 : milliseconds(0)));
  CHECK(first.on_device <= std::chrono::nanoseconds(first.ended_ns - first.started_ns));
  CHECK((late.on_device > milliseconds(0)) == is_asked);
}

TEST_CASE("NcclCommunicator: options that can't be are refused before anything happens") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 1);
  for (const auto& [rank, size] : {std::pair{1, 1}, std::pair{-1, 2}, std::pair{0, 0}}) {
    NcclOptions options = rig.options(0, 1);
    options.rank = rank;
    options.size = size;
    const Error error = error_of([&] { rig.join(options); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ddprun::test
