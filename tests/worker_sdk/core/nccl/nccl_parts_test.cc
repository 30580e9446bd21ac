// SPDX-License-Identifier: Apache-2.0
// The small parts under the nccl communicator, and the loaders on this machine.
#include <atomic>
#include <cstdlib>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/bounded_call.h"
#include "common/env_names.h"
#include "tests/support/catch.h"
#include "tests/worker_sdk/core/nccl/rig.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/device_identity.h"
#include "worker_sdk/core/nccl/loader.h"
#include "worker_sdk/core/nccl/operation.h"
#include "worker_sdk/core/nccl/peer_board.h"

namespace ddprun::test {
namespace {

TEST_CASE("list_ranks: few are all named, many are counted") {
  CHECK(nccl::list_ranks({}) == "");
  CHECK(nccl::list_ranks({3}) == "3");
  CHECK(nccl::list_ranks({3, 5, 6}) == "3, 5 and 6");
  CHECK(nccl::list_ranks({0, 1, 2, 3, 4, 5, 6, 7, 8}) == "0, 1, 2, 3, 4, 5, 6, 7 and 8");
  CHECK(nccl::list_ranks({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

TEST_CASE("version_text: NCCL's number in its own words") {
  CHECK(nccl::version_text(22809) == "2.28.9");
  CHECK(nccl::version_text(21800) == "2.18.0");
}

TEST_CASE("read_test_gpu: a program without switches refuses them in one line") {
  CHECK(nccl::read_test_gpu("shared", true).shared);
  CHECK_FALSE(nccl::read_test_gpu("", false).shared);
  const Error error = error_of([] { nccl::read_test_gpu("shared", false); });
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(std::string(error.what()) ==
        "DDPRUN_TEST_GPU is set, and an installed program has no switches for tests: unset it");
}

TEST_CASE("device_identity: an error shows what CUDA was told to show") {
  FakeCuda cuda(2);
  ::setenv(env::kCudaVisibleDevices, "5,7", 1);
  const std::string error = error_of([&] { nccl::device_identity(cuda, 2); }).what();
  ::unsetenv(env::kCudaVisibleDevices);
  CHECK(error == "LOCAL_RANK is 2, but CUDA sees 2 GPUs with CUDA_VISIBLE_DEVICES=\"5,7\"");
}

TEST_CASE("device_identity: no GPU, or a driver that CUDA refuses, is one line") {
  FakeCuda none(0), refused(1);
  constexpr nccl::CudaResult kInsufficientDriver = 35;
  refused.fail("device_count", kInsufficientDriver);
  ::setenv(env::kCudaVisibleDevices, "none", 1);
  const Error hidden = error_of([&] { nccl::device_identity(none, 0); });
  ::unsetenv(env::kCudaVisibleDevices);
  CHECK(hidden.code() == ErrorCode::kUnsupported);
  CHECK(std::string(hidden.what()) == "CUDA sees no GPU with CUDA_VISIBLE_DEVICES=\"none\"");
  const Error old = error_of([&] { nccl::device_identity(refused, 0); });
  CHECK(old.code() == ErrorCode::kUnsupported);
  CHECK(std::string(old.what()) == "CUDA: fake CUDA error 35");
}

TEST_CASE("gpu_identity: the same for slices of one GPU, on one host as NCCL knows it") {
  FakeCuda cuda(3);
  cuda.set_pci_bus_id(2, "fake-bus-0");
  const std::string first = nccl::gpu_identity(cuda, 0);
  CHECK(first == nccl::gpu_identity(cuda, 2));
  CHECK(first != nccl::gpu_identity(cuda, 1));
  ::setenv("NCCL_HOSTID", "another host", 1);
  CHECK(first != nccl::gpu_identity(cuda, 0));
  ::unsetenv("NCCL_HOSTID");
}

TEST_CASE("made_for_others: it knows which GPUs nvcc's code runs on") {
  constexpr char kFlags[] =
      "CUDA_FLAGS= -O2 -gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80 "
      "-gencode arch=compute_90a,code=sm_90a -gencode arch=compute_120,code=sm_120, CUDA_VERSION=1";
  for (const auto& [major, minor] : {std::pair(7, 5), {8, 0}, {8, 6}, {9, 0}, {12, 0}, {12, 1}}) {
    CAPTURE(major, minor);
    CHECK(nccl::made_for_others(kFlags, major, minor).empty());
  }
  for (const auto& [major, minor] : {std::pair(6, 1), {7, 0}, {9, 1}, {10, 0}}) {
    CAPTURE(major, minor);
    CHECK(nccl::made_for_others(kFlags, major, minor) == "7.5, 8.0, 9.0, 12.0");
  }
  // The architectures in LibTorch's format on a GPU. Source is translated for every later GPU.
  constexpr char kSource[] =
      "-gencode;arch=compute_70,code=sm_70;-gencode;arch=compute_80,code=compute_80";
  CHECK(nccl::made_for_others(kSource, 12, 0).empty());
  CHECK(nccl::made_for_others(kSource, 7, 5).empty());
  CHECK(nccl::made_for_others(kSource, 6, 0) == "7.0, 8.0");
  CHECK(nccl::made_for_others("code=[compute_80,sm_70]", 8, 9).empty());
  CHECK(nccl::made_for_others("built without CUDA", 9, 0).empty());
}

TEST_CASE("check_code: one line names the GPU and what the code was built for") {
  FakeCuda cuda(1);
  nccl::check_code(cuda, 0, "this LibTorch", "code=sm_90");
  const Error error = error_of([&] { nccl::check_code(cuda, 0, "this LibTorch", "code=sm_75"); });
  CHECK(error.code() == ErrorCode::kUnsupported);
  CHECK(
      std::string(error.what()) ==
      "GPU 0 has compute capability 9.0, and this LibTorch is built for 7.5: use one that is built "
      "for this GPU");
}

TEST_CASE("DeviceLaunchLock: a device has one thread at a time, other devices don't wait") {
  std::atomic<int> num_inside{0}, num_overlaps{0};
  std::vector<std::thread> threads;
  const nccl::DeviceLaunchLock other_device(1);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) {
        const nccl::DeviceLaunchLock lock(0);
        if (++num_inside != 1) ++num_overlaps;
        std::this_thread::yield();
        --num_inside;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(num_overlaps == 0);
}

TEST_CASE("DeviceLaunchLock: needed where NCCL keeps the order of launches") {
  for (const auto& [value, is_needed] :
       {std::pair("1", true), {"2", true}, {"0", false}, {"", false}}) {
    ::setenv(env::kNcclLaunchOrderImplicit, value, 1);
    CHECK(nccl::DeviceLaunchLock::is_needed() == is_needed);
  }
  ::unsetenv(env::kNcclLaunchOrderImplicit);
  CHECK_FALSE(nccl::DeviceLaunchLock::is_needed());
}

TEST_CASE("Rig: a rank's memory goes without a wait for what another rank runs on the GPU") {
  Rig rig(1);  // both ranks are on it
  std::promise<void> runs, is_free;
  std::atomic<bool> waited_in_vain{false};
  rig.run(2, [&](const NcclOptions& mine) {
    const auto stream = static_cast<Stream>(mine.current_stream(mine.device));
    if (mine.rank == 0) {
      rig.fake_cuda->enqueue(stream, [&, freed = is_free.get_future().share()] {
        runs.set_value();
        waited_in_vain = freed.wait_for(std::chrono::seconds(10)) != std::future_status::ready;
      });
      rig.fake_cuda->stream_synchronize(stream);
    } else {
      {
        DeviceArray array(rig, stream, mine.device, DType::kFloat32, 1);
        runs.get_future().wait();
      }
      is_free.set_value();
    }
  });
  CHECK_FALSE(waited_in_vain.load());
}

TEST_CASE("FakeCuda: a captured graph runs in replay alone, with the streams that wait for it") {
  FakeCuda cuda(1);
  nccl::Stream caller = nullptr, own = nullptr;
  nccl::Event ready = nullptr, done = nullptr;
  cuda.stream_create_high_priority(&caller);
  cuda.stream_create_high_priority(&own);
  cuda.event_create(&ready, false);
  cuda.event_create(&done, false);
  bool is_capturing = true;
  cuda.stream_is_capturing(caller, &is_capturing);
  CHECK_FALSE(is_capturing);

  std::atomic<int> num_runs{0};
  const auto capture_one_launch = [&] {
    cuda.begin_capture(caller);
    cuda.event_record(ready, caller);
    cuda.stream_wait_event(own, ready);
    cuda.stream_is_capturing(own, &is_capturing);
    CHECK(is_capturing);
    cuda.enqueue(own, [&] { ++num_runs; });
    cuda.event_record(done, own);
    CHECK(cuda.stream_wait_event(caller, done) == nccl::kCudaSuccess);
  };
  capture_one_launch();
  const auto graph = cuda.end_capture();
  REQUIRE(graph);
  CHECK(num_runs == 0);
  cuda.replay(*graph, caller);
  cuda.replay(*graph, caller);
  cuda.stream_synchronize(caller);
  CHECK(num_runs == 2);

  capture_one_launch();
  // A query of a captured event breaks the graph.
  CHECK(cuda.event_query(done) != nccl::kCudaSuccess);
  CHECK_FALSE(cuda.end_capture());
}

TEST_CASE("FakeNccl: it tells which operations NVLS can't do between two nodes") {
  const bool network_reduces = GENERATE(false, true);
  Rig rig;
  rig.fake->set_nodes(1, network_reduces);
  rig.run_with(2, blocking, [&](NcclCommunicator& comm, Stream stream) {
    DeviceArray all(rig, stream, device_of(comm, rig), DType::kFloat32, 4);
    DeviceArray half(rig, stream, device_of(comm, rig), DType::kFloat32, 2);
    for (const auto op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
      comm.all_reduce(all.view(), op);
    }
    comm.reduce_scatter(all.view(), half.view(), ReduceOp::kSum);
    comm.broadcast(all.view(), 0);
  });
  std::set<std::string> expected{"all_reduce average float32 on 2 nodes",
                                 "all_reduce max float32 on 2 nodes",
                                 "broadcast of float32 on 2 nodes"};
  if (!network_reduces) expected.insert("reduce_scatter sum float32 on 2 nodes");
  CHECK(rig.fake->without_nvls() == expected);
}

TEST_CASE("ras_address: one for all workers of a job, others for other jobs") {
  const Endpoint store{"10.0.0.1", 29500};
  const std::string address = nccl::ras_address("job", store);
  CHECK(address == nccl::ras_address("job", store));
  CHECK(address != nccl::ras_address("other job", store));
  CHECK(address != nccl::ras_address("job", Endpoint{"10.0.0.1", 29501}));
  CHECK(address != "localhost:28028");
  for (int job = 0; job < 1000; ++job) {
    const std::string one = nccl::ras_address(std::to_string(job), store);
    REQUIRE(one.substr(0, 10) == "localhost:");
    const int port = std::stoi(one.substr(10));
    REQUIRE((port >= 21'000 && port < 28'000));
  }
}

// The communicator fails while an event is looked at. The abort then lets the event pass.
class FailsMeanwhile : public FakeCuda {
 public:
  explicit FailsMeanwhile(nccl::Failure& failure) : FakeCuda(1), failure_(failure) {}
  nccl::CudaResult event_query(nccl::Event) override {
    failure_.set(Error(ErrorCode::kAborted, "meanwhile"));
    return nccl::kCudaSuccess;
  }

 private:
  nccl::Failure& failure_;
};

TEST_CASE("Operation: an event that passes as the communicator fails is no success") {
  const auto failure = std::make_shared<nccl::Failure>();
  const auto cuda = std::make_shared<FailsMeanwhile>(*failure);
  const auto events = std::make_shared<nccl::EventPool>(cuda, 0);
  nccl::Operation operation(cuda, events, failure, {}, milliseconds(10'000));
  operation.mark_launched();
  CHECK(operation.poll() == nccl::Operation::State::kFailed);
}

// A device that behaves like a hanging GPU.
class NeverReady : public FakeCuda {
 public:
  NeverReady() : FakeCuda(1) {}
  nccl::CudaResult event_query(nccl::Event) override { return nccl::kCudaNotReady; }
};

TEST_CASE("Operation: a failure ends it though its event never passes") {
  const auto failure = std::make_shared<nccl::Failure>();
  const auto cuda = std::make_shared<NeverReady>();
  const auto events = std::make_shared<nccl::EventPool>(cuda, 0);
  nccl::Operation operation(cuda, events, failure, {}, milliseconds(10'000));
  operation.mark_launched();
  CHECK(operation.poll() == nccl::Operation::State::kPending);
  failure->set(Error(ErrorCode::kAborted, "enough"));
  CHECK(operation.poll() == nccl::Operation::State::kFailed);
}

TEST_CASE("PeerBoard: the first rank to give up is the one that is named") {
  SharedStore store;
  nccl::PeerBoard first(store, "p/", 1, 3);
  nccl::PeerBoard second(store, "p/", 2, 3);
  CHECK(!first.gave_up());
  second.post_gave_up("no disk\nat all");
  first.post_gave_up("later");
  const auto notice = first.gave_up();
  REQUIRE(notice);
  CHECK(notice->rank == 2);
  CHECK(notice->reason == "no disk\nat all");
}

TEST_CASE("PeerBoard: not_waiting() has the ranks that have not said that they wait") {
  SharedStore store;
  nccl::PeerBoard board(store, "p/", 1, 4);
  CHECK(board.not_waiting(7) == std::vector<int>({0, 1, 2, 3}));
  board.post_waiting(7);
  CHECK(board.not_waiting(7) == std::vector<int>({0, 2, 3}));
  CHECK(board.not_waiting(8) == std::vector<int>({0, 1, 2, 3}));
}

TEST_CASE("CommGate: one caller at a time is inside") {
  int memory = 0;
  const auto comm = reinterpret_cast<nccl::Comm>(&memory);
  nccl::CommGate gate(comm);
  std::atomic<bool> has_left{false};
  std::thread second;
  {
    const nccl::CommGate::Pass first(gate);
    CHECK(first.comm() == comm);
    CHECK(nccl::CommGate::Pass(gate, nccl::CommGate::IfBusy::kTurnBack).comm() == nullptr);
    second = std::thread([&] {
      const nccl::CommGate::Pass pass(gate);
      if (pass.comm() != comm || !has_left) std::abort();
    });
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // by now it waits
    has_left = true;
  }
  second.join();
}

TEST_CASE("CommGate: take closes the gate, and has the handle once nobody is inside") {
  int memory = 0;
  const auto comm = reinterpret_cast<nccl::Comm>(&memory);
  nccl::CommGate gate(comm);
  std::atomic<bool> inside{false}, left{false};
  std::thread caller([&] {
    const nccl::CommGate::Pass pass(gate);
    inside = true;
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // by now take() waits
    left = true;
  });
  while (!inside) std::this_thread::yield();
  CHECK(gate.take(Deadline::after(milliseconds(60'000))) == comm);
  CHECK(left.load());
  caller.join();
  CHECK(nccl::CommGate::Pass(gate).comm() == nullptr);
}

TEST_CASE("CommGate: take gives up at its deadline, and a caller that waits is turned back") {
  int memory = 0;
  nccl::CommGate gate(reinterpret_cast<nccl::Comm>(&memory));
  const nccl::CommGate::Pass pass(gate);
  std::thread waits([&] {
    if (nccl::CommGate::Pass(gate).comm() != nullptr) std::abort();
  });
  CHECK(gate.take(Deadline::after(milliseconds(20))) == nullptr);
  waits.join();
}

TEST_CASE("returns_before: tells a call that hangs from one that ends") {
  CHECK(returns_before(Deadline::after(milliseconds(10'000)), [] {}));
  const auto release = std::make_shared<std::atomic<bool>>(false);
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  CHECK(!returns_before(Deadline::after(milliseconds(20)), [release, ended] {
    while (!release->load()) std::this_thread::yield();
    ended->store(true);
  }));
  release->store(true);
  while (!ended->load()) std::this_thread::yield();
}

TEST_CASE("DynamicLibrary: the override, a loaded copy, and what was tried") {
  nccl::LibrarySearch search;
  search.what = "the test library";
  search.override_variable = "DDPRUN_TEST_LIBRARY";
  search.names = {"libm.so.6"};
  const auto library = nccl::DynamicLibrary::open(search);
  CHECK(contains(library.path(), "libm.so.6"));
  CHECK(library.find("cos") != nullptr);
  CHECK(library.find("no_such_function") == nullptr);
  const Error missing = error_of([&] { library.require("no_such_function"); });
  CHECK(missing.code() == ErrorCode::kUnsupported);
  CHECK(contains(missing.what(), "has no function no_such_function"));

  search.names = {"libddprun-not-there.so.1"};
  search.folders = {"/nowhere"};
  const Error not_found = error_of([&] { nccl::DynamicLibrary::open(search); });
  CHECK(not_found.code() == ErrorCode::kUnsupported);
  CHECK(contains(not_found.what(), "the test library was not found"));
  CHECK(contains(not_found.what(), "/nowhere/libddprun-not-there.so.1"));
  CHECK(contains(not_found.what(), "DDPRUN_TEST_LIBRARY"));

  ::setenv("DDPRUN_TEST_LIBRARY", "/nowhere/else.so", 1);
  const Error bad_override = error_of([&] { nccl::DynamicLibrary::open(search); });
  CHECK(contains(bad_override.what(), "DDPRUN_TEST_LIBRARY=/nowhere/else.so can't be loaded"));
  ::unsetenv("DDPRUN_TEST_LIBRARY");
}

TEST_CASE("load_nccl: a library that is not NCCL is refused by name") {
  ::setenv(env::kNcclLibrary, "libm.so.6", 1);
  const Error error = error_of([] { nccl::load_nccl(); });
  ::unsetenv(env::kNcclLibrary);
  CHECK(error.code() == ErrorCode::kUnsupported);
  const bool built_in = !contains(error.what(), "built without CUDA and NCCL");
  if (built_in) CHECK(contains(error.what(), "has no function ncclGetVersion"));
}

TEST_CASE("load_nccl: the machine's NCCL loads and makes unique ids without a GPU") {
  std::shared_ptr<nccl::NcclApi> library;
  try {
    library = nccl::load_nccl();
  } catch (const Error& error) {
    DDPRUN_SKIP(error.what());
  }
  CHECK(library->version() >= nccl::kMinVersion);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  nccl::UniqueId first;
  nccl::UniqueId second;
  REQUIRE(library->get_unique_id(&first) == nccl::Result::kSuccess);
  REQUIRE(library->get_unique_id(&second) == nccl::Result::kSuccess);
  CHECK(std::string(first.bytes, nccl::UniqueId::kSizeBytes) !=
        std::string(second.bytes, nccl::UniqueId::kSizeBytes));
  CHECK(!library->error_text(nccl::Result::kInvalidUsage).empty());
}

TEST_CASE("load_cuda: the machine's runtime loads, and counts its GPUs or says why not") {
  std::shared_ptr<nccl::CudaApi> cuda;
  try {
    cuda = nccl::load_cuda();
  } catch (const Error& error) {
    DDPRUN_SKIP(error.what());
  }
  int count = -1;
  const auto result = cuda->device_count(&count);
  const std::string text = cuda->error_text(result);
  CHECK((result == nccl::kCudaSuccess || !text.empty()));
}

}  // namespace
}  // namespace ddprun::test
