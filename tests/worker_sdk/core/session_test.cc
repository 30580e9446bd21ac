// SPDX-License-Identifier: Apache-2.0
// Sessions of several ranks (threads) against a real store server. The tests are about the
// environment, key spaces, the agreement on a backend with its warning, and both backends of
// make_communicator.
#include "worker_sdk/core/session.h"

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/env_names.h"
#include "common/error.h"
#include "rendezvous/store/tcp_store.h"
#include "tests/rendezvous/store_server/server_thread.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_nccl.h"
#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/nccl/device_identity.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using store::testing::LogLines;
using store::testing::ServerThread;
using test::contains;
using test::error_of;
using test::expect;

WorkerEnv environment(int rank, int size, const Endpoint& master) {
  WorkerEnv env;
  env.rank = rank;
  env.local_rank = env.device = rank;
  env.world_size = size;
  env.local_world_size = size;
  env.master = master;
  return env;
}

// The same environment with DDPRUN_DEBUG=collectives.
WorkerEnv debugging(int rank, int size, const Endpoint& master) {
  const std::map<std::string, std::string> variables = {
      {env::kRank, std::to_string(rank)},
      {env::kLocalRank, std::to_string(rank)},
      {env::kWorldSize, std::to_string(size)},
      {env::kLocalWorldSize, std::to_string(size)},
      {env::kGroupRank, "0"},
      {env::kGroupWorldSize, "1"},
      {env::kMasterAddr, master.host},
      {env::kMasterPort, std::to_string(master.port)},
      {env::kDebug, "collectives"}};
  return WorkerEnv::from_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

StoreFactory connect_to(const Endpoint& endpoint) {
  return [endpoint] {
    store::TcpStoreOptions options;
    options.timeout = milliseconds(30'000);
    return std::make_unique<store::TcpStore>(endpoint, options);
  };
}

NcclLoader nothing_there() {
  return []() -> NcclLibraries { throw Error(ErrorCode::kUnsupported, "no libcudart here"); };
}

// Runs `body` with one session per rank, each in its own thread.
void run_sessions(ServerThread& server, int size, const NcclLoader& loader,
                  const std::function<void(Session&)>& body,
                  WorkerEnv (*make_environment)(int, int, const Endpoint&) = environment) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Session session(make_environment(rank, size, server.endpoint()),
                        connect_to(server.endpoint()), loader);
        body(session);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// A fake NCCL on `num_devices`, shared by all sessions of a test.
struct Fakes {
  explicit Fakes(int num_devices)
      : cuda(std::make_shared<test::FakeCuda>(num_devices)),
        nccl(std::make_shared<test::FakeNccl>(cuda)) {}
  NcclLoader loader() const {
    return [libraries = NcclLibraries{cuda, nccl}] { return libraries; };
  }
  std::shared_ptr<test::FakeCuda> cuda;
  std::shared_ptr<test::FakeNccl> nccl;
};

TEST_CASE("Session: from_env reads the environment, reaches the store and sets what NCCL is told") {
  ServerThread server;
  const std::string port = std::to_string(server.endpoint().port);
  const std::vector<std::pair<const char*, const char*>> variables = {
      {env::kRank, "0"},      {env::kLocalRank, "0"},          {env::kWorldSize, "1"},
      {env::kGroupRank, "0"}, {env::kLocalWorldSize, "1"},     {env::kGroupWorldSize, "1"},
      {env::kRound, "7"},     {env::kMasterAddr, "127.0.0.1"}, {env::kMasterPort, port.c_str()}};
  for (const auto& [name, value] : variables) ::setenv(name, value, 1);
  ::unsetenv(env::kNcclRasAddr);
  ::unsetenv(env::kNcclLaunchOrderImplicit);
  ::unsetenv(env::kNcclCommBlocking);
  const auto session = Session::from_env();
  CHECK(session->env().round == 7);
  const std::string ras_address = nccl::ras_address("none", session->env().master);
  CHECK(std::string(::getenv(env::kNcclRasAddr)) == ras_address);
  CHECK(std::string(::getenv(env::kNcclLaunchOrderImplicit)) == "1");
  CHECK(std::string(::getenv(env::kNcclCommBlocking)) == "1");
  ::setenv(env::kNcclCommBlocking, "0", 1);
  ::setenv(env::kNcclRasAddr, "localhost:4444", 1);
  ::setenv(env::kNcclLaunchOrderImplicit, "0", 1);
  Session::from_env();
  CHECK(std::string(::getenv(env::kNcclCommBlocking)) == "1");
  ::unsetenv(env::kNcclCommBlocking);
  // The user's own values stay.
  CHECK(std::string(::getenv(env::kNcclRasAddr)) == "localhost:4444");
  CHECK(std::string(::getenv(env::kNcclLaunchOrderImplicit)) == "0");
  ::unsetenv(env::kNcclRasAddr);
  ::unsetenv(env::kNcclLaunchOrderImplicit);
  session->store().set("answer", "42");
  store::TcpStore direct(server.endpoint());
  CHECK(direct.get("ddprun/7/user/answer") == "42");
  for (const auto& [name, value] : variables) ::unsetenv(name);
  const Error error = error_of([] { Session::from_env(); });
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(contains(error.what(), "MASTER_ADDR"));
}

TEST_CASE("Session: rounds do not see each other's keys") {
  ServerThread server;
  WorkerEnv env = environment(0, 1, server.endpoint());
  Session first(env, connect_to(server.endpoint()), nothing_there());
  env.round = 2;
  Session second(env, connect_to(server.endpoint()), nothing_there());
  first.store().set("key", "of round 1");
  CHECK(!second.store().check({"key"}));
}

TEST_CASE("Session: auto without GPUs is the host backend, with one warning that names the rank") {
  ServerThread server;
  LogLines log;
  run_sessions(server, 3, nothing_there(), [](Session& session) {
    const auto communicator = session.make_communicator();
    expect(communicator->backend() == "host", "the host backend");
    std::vector<float> data(100, 1.0F);
    TensorView view;
    view.data = data.data();
    view.count = data.size();
    communicator->all_reduce(view, ReduceOp::kSum);
    expect(data == std::vector<float>(100, 3.0F), "a sum over three ranks");
  });
  int num_warnings = 0;
  for (const auto& line : log.all()) {
    if (contains(line, "not NCCL: rank 0 has no GPU of its own: no libcudart here")) ++num_warnings;
  }
  CHECK(num_warnings == 1);
}

TEST_CASE("Session: auto with a device each is NCCL, several communicators at once") {
  Fakes fakes(4);
  ServerThread server;
  run_sessions(server, 4, fakes.loader(), [&](Session& session) {
    const auto first = session.make_communicator();
    const auto second = session.make_communicator();
    expect(first->backend() == "nccl" && second->backend() == "nccl", "NCCL");
    int device = -1;
    fakes.cuda->get_device(&device);
    expect(device == session.env().device, "device LOCAL_RANK is selected");
    for (Communicator* communicator : {first.get(), second.get()}) {
      const auto buffer = communicator->allocate(sizeof(std::int32_t));
      TensorView view;
      view.data = buffer->data();
      view.count = 1;
      view.dtype = DType::kInt32;
      view.device = Device{Device::Kind::kCuda, device};
      fakes.cuda->memory_set(view.data, 1, 1, nullptr);
      communicator->all_reduce(view, ReduceOp::kSum);
      fakes.cuda->stream_synchronize(nullptr);
      expect(*static_cast<std::int32_t*>(view.data) == 4, "a sum over four ranks");
    }
  });
  CHECK(fakes.nccl->num_ids() == 2);
  store::TcpStore direct(server.endpoint());
  // The ids of this round.
  CHECK(direct.check({"ddprun/1/comm0/nccl/id/0", "ddprun/1/comm1/nccl/id/0"}));
  CHECK(fakes.nccl->num_violations() == 0);
}

// One element, on the device of the session's thread.
struct DeviceNumber {
  DeviceNumber(Communicator& communicator, test::FakeCuda& cuda, std::size_t count)
      : buffer(communicator.allocate(count * sizeof(float))) {
    int device = -1;
    cuda.get_device(&device);
    view = {.data = buffer->data(), .count = count, .dtype = DType::kFloat32};
    view.device = Device{Device::Kind::kCuda, device};
  }
  std::unique_ptr<CommBuffer> buffer;
  TensorView view;
};

TEST_CASE("Session: NCCL's calls are compared in debug mode, and are as they were") {
  Fakes fakes(4);
  ServerThread server;
  run_sessions(server, 4, fakes.loader(), [&](Session& session) {
    const auto world = session.make_communicator({}, {.compare_calls = true});
    expect(world->backend() == "nccl" && world->size() == 4, "NCCL");
    DeviceNumber number(*world, *fakes.cuda, 1);
    *static_cast<float*>(number.view.data) = 1;
    const WorkPtr work = world->all_reduce(number.view, ReduceOp::kSum, {.async = true});
    work->wait();
    world->broadcast(number.view, 2);
    world->barrier();
    fakes.cuda->stream_synchronize(nullptr);
    expect(*static_cast<float*>(number.view.data) == 4, "a sum over four ranks");
    const auto entries = session.progress().recorder().entries();
    expect(entries.size() == 4, "the comparisons are not recorded");
  });
  CHECK(fakes.nccl->num_violations() == 0);
}

TEST_CASE("Session: different NCCL calls are named on every rank in debug mode") {
  const int what = GENERATE(0, 1, 2, 3);
  CAPTURE(what);
  Fakes fakes(3);
  ServerThread server;
  run_sessions(server, 3, fakes.loader(), [&](Session& session) {
    const auto world = session.make_communicator({}, {.compare_calls = true});
    std::vector<OperationFailure> told;
    session.progress().on_operation_failed([&](const auto& failure) { told.push_back(failure); });
    DeviceNumber numbers(*world, *fakes.cuda, 8);
    const Error error = error_of([&] {
      TensorView fewer = numbers.view;
      fewer.count = 4;
      const bool odd = session.rank() == 1;
      if (odd && what == 0) world->broadcast(fewer, 0);
      if (odd && what == 1) world->all_reduce(fewer, ReduceOp::kSum);
      if (odd && what == 2) world->all_reduce(numbers.view, ReduceOp::kMax);
      if (odd && what == 3) world->barrier();
      if (!odd) world->all_reduce(numbers.view, ReduceOp::kSum, {.async = true})->wait();
    });
    expect(error.code() == ErrorCode::kProtocol, error.what());
    constexpr const char* kOdd[] = {"broadcast #2 (16 bytes float32, root 0)",
                                    "all_reduce #2 (16 bytes float32, sum)",
                                    "all_reduce #2 (32 bytes float32, max)", "barrier #2"};
    expect(contains(error.what(), std::string("rank 1 called ") + kOdd[what]), error.what());
    expect(contains(error.what(), "where rank 0 called all_reduce #2 (32 bytes float32, sum)"),
           error.what());
    expect(told.size() == 1 && told[0].code == "protocol error", "the recorder is told once");
    session.progress().on_operation_failed(nullptr);
    const Error later = error_of([&] { world->barrier(); });
    expect(later.code() != ErrorCode::kInvalidArgument, later.what());
  });
}

TEST_CASE("Session: DDPRUN_DEBUG=collectives alone switches debug mode on") {
  Fakes fakes(2);
  ServerThread server;
  const auto body = [&](Session& session) {
    const auto world = session.make_communicator();
    expect(world->backend() == "nccl", "NCCL");
    DeviceNumber numbers(*world, *fakes.cuda, 8);
    const Error error = error_of([&] {
      if (session.rank() == 1) world->broadcast(numbers.view, 0);
      if (session.rank() == 0) world->all_reduce(numbers.view, ReduceOp::kSum);
    });
    expect(error.code() == ErrorCode::kProtocol, error.what());
    for (const char* part : {"rank 1 called broadcast #2 (32 bytes float32, root 0)",
                             "where rank 0 called all_reduce #2 (32 bytes float32, sum)"}) {
      expect(contains(error.what(), part), error.what());
    }
  };
  run_sessions(server, 2, fakes.loader(), body, debugging);
  CHECK(fakes.nccl->num_violations() == 0);
}

TEST_CASE("Session: an NCCL operation that a rank never joins is recorded with its name") {
  const bool compared = GENERATE(false, true);
  CAPTURE(compared);
  Fakes fakes(2);
  ServerThread server;
  std::barrier everyone(2);
  run_sessions(server, 2, fakes.loader(), [&](Session& session) {
    const auto world = session.make_communicator(
        {}, {.timeout = milliseconds(500), .blocking_wait = true, .compare_calls = compared});
    std::vector<OperationFailure> told;
    std::atomic<int> num_told = 0;
    session.progress().on_operation_failed([&](const auto& failure) {
      told.push_back(failure);
      ++num_told;
    });
    DeviceNumber number(*world, *fakes.cuda, 8);  // it is freed while the abort is under way
    if (session.rank() == 0) {
      const Error error = error_of([&] { world->all_reduce(number.view, ReduceOp::kSum); });
      expect(error.code() == ErrorCode::kTimeout, error.what());
      world->abort("enough");
    }
    everyone.arrive_and_wait();
    const auto deadline = Deadline::after(milliseconds(10'000));
    while (session.rank() == 0 && num_told == 0 && !deadline.expired()) {
      std::this_thread::yield();  // waits for the watchdog to tell it
    }
    session.progress().on_operation_failed(nullptr);  // afterwards nothing is told any more
    if (session.rank() == 1) return;
    expect(told.size() == 1, "told once");
    expect(told[0].code == "timeout" && told[0].missing == std::vector<int>{1}, told[0].message);
    expect(told[0].facts.kind == CollectiveKind::kAllReduce && told[0].facts.count == 8, "what");
  });
  CHECK(fakes.nccl->num_violations() == 0);
  CHECK(fakes.nccl->num_live_buffers() == 0);
}

TEST_CASE("Session: auto with more ranks than GPUs is the host backend and says so") {
  Fakes fakes(2);
  ServerThread server;
  LogLines log;
  run_sessions(server, 3, fakes.loader(), [](Session& session) {
    expect(session.make_communicator()->backend() == "host", "the host backend");
  });
  CHECK(!log.await("rank 2 has no GPU of its own: LOCAL_RANK is 2, but CUDA sees 2 GPUs").empty());
  CHECK(fakes.nccl->num_ids() == 0);
}

TEST_CASE("Session: a GPU that the program has no code for is none of its rank's") {
  Fakes fakes(1);
  ServerThread server;
  LogLines log;
  const auto loader = [&]() -> NcclLibraries {
    return {fakes.cuda, fakes.nccl, [](int device) {
              throw Error(ErrorCode::kUnsupported, "no code for GPU " + std::to_string(device));
            }};
  };
  run_sessions(server, 1, loader, [](Session& session) {
    expect(session.make_communicator()->backend() == "host", "the host backend");
  });
  CHECK(!log.await("rank 0 has no GPU of its own: no code for GPU 0").empty());
}

TEST_CASE("Session: two MIG slices of one GPU are the host backend's, with NCCL before 2.30.7") {
  Fakes fakes(2);
  fakes.cuda->set_pci_bus_id(1, "fake-bus-0");
  ServerThread server;
  LogLines log;
  run_sessions(server, 2, fakes.loader(), [](Session& session) {
    expect(session.make_communicator()->backend() == "host", "the host backend");
  });
  CHECK(!log.await("rank 1 has a slice (MIG) of the GPU of rank 0").empty());
  CHECK(fakes.nccl->num_ids() == 0);
}

TEST_CASE(
    "Session: explicit nccl with more ranks than GPUs fails on every rank before NCCL starts") {
  Fakes fakes(2);
  ServerThread server;
  run_sessions(server, 3, fakes.loader(), [](Session& session) {
    const Error error = error_of([&] { session.make_communicator(BackendChoice::kNccl); });
    expect(error.code() == ErrorCode::kInvalidArgument, error.what());
    expect(contains(error.what(), "rank 2 has no GPU of its own: LOCAL_RANK is 2"), error.what());
  });
  CHECK(fakes.nccl->num_ids() == 0);
}

TEST_CASE("Session: two indices of one GPU are found by its UUID") {
  Fakes fakes(2);
  fakes.cuda->set_uuid(1, "fake-gpu-0");
  ServerThread server;
  run_sessions(server, 2, fakes.loader(), [](Session& session) {
    const Error error = error_of([&] { session.make_communicator(BackendChoice::kNccl); });
    expect(contains(error.what(), "rank 1 would share its GPU with rank 0"), error.what());
  });
}

TEST_CASE("Session: a GPU that CUDA can't identify is no GPU of one's own") {
  Fakes fakes(1);
  ServerThread server;
  for (const char* function : {"device_count", "device_uuid"}) {
    fakes.cuda->fail(function, 35);
    WorkerEnv env = environment(0, 1, server.endpoint());
    env.round = function[7] == 'c' ? 1 : 2;
    Session session(env, connect_to(server.endpoint()), fakes.loader());
    const Error error = error_of([&] { session.make_communicator(BackendChoice::kNccl); });
    CHECK(contains(error.what(), "rank 0 has no GPU of its own"));
    CHECK(contains(error.what(), "fake CUDA error 35"));
    fakes.cuda->succeed_again(function);
  }
}

TEST_CASE("Session: explicit host asks for no GPU") {
  ServerThread server;
  run_sessions(server, 2, nullptr, [](Session& session) {
    expect(session.make_communicator(BackendChoice::kHost)->backend() == "host", "host");
  });
}

TEST_CASE("Session: a second one of the same worker goes on where the first one ended") {
  ServerThread server;
  for (int time = 0; time < 2; ++time) {
    run_sessions(server, 2, nothing_there(), [](Session& session) {
      session.make_communicator(BackendChoice::kHost)->barrier();
    });
  }
  CHECK(store::TcpStore(server.endpoint()).get("ddprun/1/communicators/0") == "2");
}

TEST_CASE("Session: ranks that choose differently all hear it") {
  ServerThread server;
  run_sessions(server, 2, nothing_there(), [](Session& session) {
    const auto choice = session.rank() == 0 ? BackendChoice::kHost : BackendChoice::kAuto;
    const Error error = error_of([&] { session.make_communicator(choice); });
    expect(contains(error.what(), "rank 0 \"host\", rank 1 \"auto\""), error.what());
  });
}

TEST_CASE("Session: a rank that never comes is named, and the store's deadline is restored") {
  ServerThread server;
  Session session(environment(0, 2, server.endpoint()), connect_to(server.endpoint()),
                  nothing_there());
  const auto before = session.store().timeout();
  CommunicatorOptions options;
  options.init_timeout = milliseconds(100);
  const Error error = error_of([&] { session.make_communicator(BackendChoice::kAuto, options); });
  CHECK(error.code() == ErrorCode::kTimeout);
  CHECK(contains(error.what(), "never came: rank 1"));
  CHECK(session.store().timeout() == before);
}

}  // namespace
}  // namespace ddprun
