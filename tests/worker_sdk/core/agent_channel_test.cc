// SPDX-License-Identifier: Apache-2.0
// Messages of a worker's SDK to a real agent's socket.
#include "worker_sdk/core/agent_channel.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "common/env_names.h"
#include "common/error.h"
#include "common/text.h"
#include "rendezvous/store/tcp_store.h"
#include "tests/rendezvous/store_server/server_thread.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/shared_store.h"
#include "tests/worker_sdk/core/agent_thread.h"
#include "worker_sdk/core/session.h"

namespace ddprun {
namespace {

using store::testing::LogLines;
using store::testing::ServerThread;
using test::AgentThread;

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

// Rank 0 of a job of one worker.
Session make_session(const ServerThread& server, const std::string& agent_socket, int round = 1) {
  WorkerEnv env;
  env.round = round;
  env.master = server.endpoint();
  env.agent_socket = agent_socket;
  return Session(env, [endpoint = server.endpoint()] {
    store::TcpStoreOptions options;
    options.timeout = std::chrono::milliseconds(2'000);  // also of the connection
    return std::make_unique<store::TcpStore>(endpoint, options);
  });
}

TEST_CASE("AgentChannel: the page that comes with the welcome is the agent's") {
  AgentThread agent(4, 2);
  AgentChannel channel(agent.path(), 4, 1, soon());
  WorkerProgress progress(channel.page());
  progress.begin_step(9);
  CHECK(agent.read(1).step == 9);
  CHECK(agent.read(1).connected);
  CHECK_FALSE(agent.read(0).connected);
}

bool appears(const std::string& path) {
  const Deadline deadline = soon();
  while (!std::filesystem::exists(path) && !deadline.expired()) std::this_thread::yield();
  return std::filesystem::exists(path);
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("Session: the agent asks for the flight recorder, and gets it beside the error file") {
  ServerThread server;
  AgentThread agent(1, 1);
  const test::TempDirectory directory;
  WorkerEnv env;
  env.master = server.endpoint();
  env.agent_socket = agent.path();
  env.error_file = directory.path() + "/error.json";
  const std::string file = directory.path() + "/flight_recorder.json";
  Session session(env, [endpoint = server.endpoint()] {
    return std::make_unique<store::TcpStore>(endpoint, store::TcpStoreOptions{});
  });
  const auto world = session.make_communicator(BackendChoice::kHost);
  world->barrier();
  session.progress().begin_step(1);
  // Tells its first step, after which all earlier messages are heard.
  session.progress().end_step();
  REQUIRE(agent.await_said(1).size() == 1);
  agent.ask_for_records();
  REQUIRE(appears(file));
  CHECK_THAT(content_of(file), test::Contains("\"failure\":null"));
  CHECK_THAT(content_of(file), test::Contains("\"kind\":\"barrier\""));
  REQUIRE(agent.await_said(2).size() == 2);
  CHECK(variants::get<agent::Recorded>(agent.await_said(2)[1].second).file == file);
  CHECK(variants::get<agent::Recorded>(agent.await_said(2)[1].second).number == 1);

  // A failure's file stays, and the agent hears of the failure.
  session.progress().operation_failed({}, Error(ErrorCode::kTimeout, "say \"it\""), {1}, 2,
                                      std::chrono::milliseconds(5));
  const auto said = agent.await_said(4);
  REQUIRE(said.size() == 4);
  CHECK(variants::get<agent::Recorded>(said[3].second).file == file);
  const auto& failed = variants::get<agent::OperationFailed>(said[2].second);
  CHECK(failed.file == file);
  CHECK(failed.message == "say \"it\"");
  CHECK(failed.missing == std::vector<int>{1});
  CHECK_THAT(content_of(file), test::Contains("\"code\":\"timeout\""));
  agent.ask_for_records();  // it is answered, and the file stays as it is
  REQUIRE(agent.await_said(5).size() == 5);
  CHECK(variants::get<agent::Recorded>(said[3].second).number == 0);
  CHECK(variants::get<agent::Recorded>(agent.await_said(5)[4].second).number == 2);
  CHECK_THAT(content_of(file), test::Contains("\"code\":\"timeout\""));
}

TEST_CASE("AgentChannel: a wait for requests ends with the agent, and when it is told to") {
  auto agent = std::make_unique<AgentThread>(1, 1);
  AgentChannel channel(agent->path(), 1, 0, soon());
  const UniqueFd stop(::eventfd(1, EFD_CLOEXEC));
  CHECK_FALSE(channel.await_request(stop.get()));
  const UniqueFd never(::eventfd(0, EFD_CLOEXEC));
  CHECK(channel.keeps_record());
  CHECK(channel.stop_job("what was said before is heard", 1));
  REQUIRE(agent->await_said(1).size() == 1);
  agent->ask_for_records();
  CHECK(channel.await_request(never.get()) == 1U);
  agent->ask_for_records();
  agent->ask_for_records();
  CHECK(channel.await_request(never.get()) == 2U);
  CHECK(channel.await_request(never.get()) == 3U);
  agent.reset();
  CHECK_FALSE(channel.await_request(never.get()));
}

TEST_CASE("AgentChannel: events arrive as they were said, whatever is in a reason") {
  AgentThread agent(1, 1);
  AgentChannel channel(agent.path(), 1, 0, soon());
  CHECK(channel.first_step(17, std::chrono::microseconds(2500)));
  CHECK(channel.exclude_node("say \"\\\" and\nbad \xff bytes: é"));
  CHECK(channel.stop_job(std::string(9000, '"'), 9));
  const auto said = agent.await_said(3);
  REQUIRE(said.size() == 3);
  CHECK(variants::get<agent::FirstStep>(said[0].second).step == 17);
  CHECK(variants::get<agent::FirstStep>(said[0].second).connecting_us == 2500);
  CHECK(variants::get<agent::ExcludeNode>(said[1].second).reason ==
        "say \"\\\" and bad \xEF\xBF\xBD bytes: é");
  CHECK(variants::get<agent::StopJob>(said[2].second).exit_code == 9);
}

TEST_CASE("Session: from_env waits for the place of a spare's worker, and takes it") {
  ServerThread server;
  AgentThread agent(0, 1);
  agent.set_place(3, {"RANK=0", "WORLD_SIZE=1", "GROUP_RANK=0", "GROUP_WORLD_SIZE=1",
                      "MASTER_ADDR=127.0.0.1", "DDPRUN_ROUND=3", "DDPRUN_NODE_ADDR=a=b",
                      "MASTER_PORT=" + std::to_string(server.endpoint().port)});
  const std::vector<std::pair<const char*, std::string>> variables = {
      {env::kRound, "0"},
      {env::kLocalRank, "0"},
      {env::kLocalWorldSize, "1"},
      {env::kAgentSocket, agent.path()}};
  for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
  const auto session = Session::from_env();
  CHECK(session->env().round == 3);
  CHECK(session->env().world_size == 1);
  CHECK(std::string(::getenv(env::kNodeAddr)) == "a=b");
  CHECK(agent.read(0).connected);  // connected in the new round
  for (const auto& [name, value] : variables) ::unsetenv(name);
  for (const char* name : {env::kRank, env::kWorldSize, env::kGroupRank, env::kGroupWorldSize,
                           env::kMasterAddr, env::kMasterPort, env::kNodeAddr, env::kNcclRasAddr}) {
    ::unsetenv(name);
  }
}

TEST_CASE(
    "AgentChannel: a worker that asks to go on in place may, and the old round's connections end") {
  AgentThread agent(4, 2);
  AgentChannel old(agent.path(), 4, 1, soon());
  CHECK_FALSE(agent.offers_recovery(1));
  CHECK(old.offers_recovery());
  CHECK(agent.offers_recovery(1));
  CHECK_FALSE(agent.offers_recovery(0));
  AgentChannel asking(agent.path(), 4, 1, soon());
  CHECK(test::code_of([&] {
          asking.ask_to_recover(Deadline::after(std::chrono::milliseconds(20)));
        }) == ErrorCode::kTimeout);  // no rank has died
  const std::vector<std::string> place = {"RANK=0", "DDPRUN_LOCAL_RANK=1", "DDPRUN_ROUND=5"};
  agent.set_places(5, {{1, place}});
  AgentChannel again(agent.path(), 4, 1, soon());
  CHECK(again.ask_to_recover(soon()) == place);
  CHECK_FALSE(old.await_request(UniqueFd(::eventfd(0, EFD_CLOEXEC)).get()));
  CHECK_FALSE(agent.offers_recovery(1));
  AgentChannel next(agent.path(), 5, 1, soon());
  CHECK(agent.read(1).connected);
}

// A fake NCCL that counts how often it was loaded.
struct Fakes {
  NcclLoader loader() {
    return [this] { return ++num_loads, NcclLibraries{cuda, nccl}; };
  }
  const std::shared_ptr<test::FakeCuda> cuda = std::make_shared<test::FakeCuda>(3);
  const std::shared_ptr<test::FakeNccl> nccl = std::make_shared<test::FakeNccl>(cuda);
  std::atomic<int> num_loads{0};
};

// The place of a worker, on one node. It was started with local rank `started_as`.
std::vector<std::string> place(const ServerThread& server, const AgentThread& agent, int round,
                               int rank, int world_size, int started_as) {
  const auto set = [](const std::string& name, auto value) { return name + "=" + concat(value); };
  return {set(env::kRank, rank),
          set(env::kLocalRank, rank),
          set(env::kTrueLocalRank, started_as),
          set(env::kWorldSize, world_size),
          set(env::kLocalWorldSize, world_size),
          set(env::kGroupRank, 0),
          set(env::kGroupWorldSize, 1),
          set(env::kRound, round),
          set(env::kMasterAddr, server.endpoint().host),
          set(env::kMasterPort, server.endpoint().port),
          set(env::kAgentSocket, agent.path()),
          set(env::kRecovery, "inplace")};
}

WorkerEnv env_of(const std::vector<std::string>& variables) {
  return WorkerEnv::from_environment([&](const char* name) -> const char* {
    const std::string begin = std::string(name) + "=";
    for (const std::string& each : variables) {
      if (each.starts_with(begin)) return each.c_str() + begin.size();
    }
    return nullptr;
  });
}

// The sum over all ranks of one number each.
float sum_of(Communicator& world, int device, float mine) {
  const auto buffer = world.allocate(sizeof mine);
  auto* number = static_cast<float*>(buffer->data());
  *number = mine;
  TensorView view{.data = number, .count = 1, .dtype = DType::kFloat32};
  view.device = {Device::Kind::kCuda, device};
  world.all_reduce(view, ReduceOp::kSum);
  return *number;
}

TEST_CASE("Session: NCCL's ranks that are left go on in place, in a communicator of their own") {
  ServerThread server;
  Fakes fakes;
  AgentThread agent(1, 3);
  agent.set_places(2,
                   {{0, place(server, agent, 2, 0, 2, 0)}, {2, place(server, agent, 2, 1, 2, 2)}});
  std::unique_ptr<Session> dead;
  std::unique_ptr<Communicator> of_dead;
  std::atomic<int> num_waiting{0};
  const auto live = [&](int rank) {
    auto session = Session::connect(env_of(place(server, agent, 1, rank, 3, rank)),
                                    {.nccl_loader = fakes.loader()});
    test::expect(session->offer_recovery() && session->may_recover(), "it is offered");
    auto world = session->make_communicator(BackendChoice::kNccl, {.blocking_wait = true});
    test::expect(session->may_recover(), "NCCL's can be left, too");
    test::expect(sum_of(*world, rank, 1) == 3, "a sum over three");
    if (rank == 1) {  // rank 1 is silent from here on
      dead = std::move(session);
      of_dead = std::move(world);
      return;
    }
    ++num_waiting;
    const Error error = test::error_of([&] { world->barrier(); });
    test::expect(error.code() == ErrorCode::kPeerLost, error.what());
    session = session->recover(std::move(world));
    test::expect(fakes.nccl->num_running(rank) == 0, "nothing of the old round is on the device");
    test::expect(session->may_recover(), "offered again");
    test::expect(session->rank() == rank / 2 && session->world_size() == 2, "its new place");
    test::expect(session->env().device == rank, "the device that it had");
    world = session->make_communicator(BackendChoice::kNccl, {.blocking_wait = true});
    test::expect(sum_of(*world, rank, 1) == 2, "a sum over two");
  };
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(std::async(std::launch::async, live, rank));
  ranks[1].get();
  const auto is_pending = [&](int rank) { return fakes.nccl->num_running(rank) > 0; };
  for (const Deadline limit = soon(); !limit.expired();) {
    if (num_waiting == 2 && is_pending(0) && is_pending(2)) break;
    std::this_thread::yield();
  }
  agent.on_io_thread([&] { agent.pages().tell_peer_lost(); });
  ranks[0].get();
  ranks[2].get();
  store::TcpStore direct(server.endpoint());
  CHECK(direct.check({"ddprun/2/comm0/nccl/id/0"}));
  CHECK(fakes.num_loads.load() == 3);
  of_dead.reset();
  dead.reset();
  CHECK(fakes.nccl->num_aborts() >= 2);
  CHECK(fakes.nccl->num_live_comms() == 0);
  CHECK(fakes.nccl->num_live_buffers() == 0);
  CHECK(fakes.nccl->num_violations() == 0);
}

TEST_CASE("Session: nothing is offered without --recovery=inplace, and recover() says so") {
  ServerThread server;
  AgentThread agent(1, 1);
  Session session = make_session(server, agent.path());
  CHECK_FALSE(session.offer_recovery());
  CHECK_FALSE(session.may_recover());
  std::string what;
  CHECK(test::code_of([&] { session.recover(nullptr); }, &what) == ErrorCode::kUnsupported);
  CHECK_THAT(what, test::Contains("must exit with a failure, to be started again"));
}

TEST_CASE("AgentChannel: nobody there, or an agent that refuses, is an error with the reason") {
  std::string what;
  CHECK(test::code_of([] { AgentChannel("/nowhere/agent.sock", 1, 0, soon()); }, &what) ==
        ErrorCode::kUnavailable);
  CHECK(test::contains(what, "/nowhere/agent.sock"));
  CHECK(test::code_of([] { AgentChannel(std::string(200, 'x'), 1, 0, soon()); }) ==
        ErrorCode::kUnavailable);
  AgentThread agent(2, 1);
  CHECK(test::code_of([&] { AgentChannel(agent.path(), 1, 0, soon()); }, &what) ==
        ErrorCode::kUnavailable);
  CHECK(test::contains(what, "round 1 is not the current one"));
}

// An agent whose thread stands still. The connection is made, and the welcome doesn't come.
class StandStill {
 public:
  explicit StandStill(AgentThread& agent) {
    stuck_ = std::async(std::launch::async, [this, &agent] {
      agent.on_io_thread([this] {
        stands_.set_value();
        release_.get_future().wait();
      });
    });
    stands_.get_future().wait();
  }
  void end() {
    release_.set_value();
    stuck_.get();
  }

 private:
  std::promise<void> stands_, release_;
  std::future<void> stuck_;
};

TEST_CASE("AgentChannel: an agent that is silent costs no more than the deadline") {
  AgentThread agent(1, 1);
  StandStill still(agent);
  CHECK(test::code_of([&] {
          AgentChannel(agent.path(), 1, 0, Deadline::after(std::chrono::milliseconds(100)));
        }) == ErrorCode::kTimeout);
  still.end();
}

TEST_CASE("Session: an agent that was silent is joined at a later step, nothing counted is lost") {
  const LogLines lines;
  ServerThread server;
  AgentThread agent(1, 1);
  StandStill still(agent);
  auto session = make_session(server, agent.path());
  CHECK_FALSE(lines.await("no progress is reported").empty());
  session.progress().begin_step(41);
  session.progress().collective_begun(CollectiveKind::kBroadcast);
  still.end();
  const Deadline deadline = soon();
  std::uint64_t step = 41;
  while (!agent.read(0).connected || agent.read(0).step == 0) {
    REQUIRE_FALSE(deadline.expired());
    session.progress().begin_step(++step);
  }
  session.progress().collective_done();
  session.progress().end_step();
  const agent::ProgressSample sample = agent.read(0);
  CHECK(sample.step == step);
  CHECK(sample.steps_done == step);
  CHECK(sample.collectives_begun == 1);
  CHECK(sample.collectives_done == 1);
  CHECK(sample.last_collective == CollectiveKind::kBroadcast);
  CHECK(session.stop_job("done", 3));
  const auto said = agent.await_said(2);
  REQUIRE(said.size() == 2);
  CHECK(variants::get<agent::FirstStep>(said[0].second).step == step);
}

TEST_CASE("Session: steps, phases and the operations of its communicators land in the page") {
  AgentThread agent(1, 1);
  ServerThread server;
  auto session = make_session(server, agent.path());
  session.progress().begin_step(3);
  session.progress().end_step();
  session.progress().set_phase(ProgressPhase::kEvaluate);
  const auto communicator = session.make_communicator(BackendChoice::kHost);
  float value = 1;
  communicator->all_reduce({.data = &value, .count = 1, .dtype = DType::kFloat32}, ReduceOp::kSum);
  communicator->barrier();
  const agent::ProgressSample sample = agent.read(0);
  CHECK(sample.steps_done == 3);
  CHECK(sample.phase == ProgressPhase::kEvaluate);
  CHECK(sample.collectives_begun == 2);
  CHECK(sample.collectives_done == 2);
  CHECK(sample.last_collective == CollectiveKind::kBarrier);
  CHECK(communicator->progress() == &session.progress());
  CHECK(session.exclude_node("hot"));
  CHECK(session.stop_job("done", 3));
  const auto said = agent.await_said(3);
  REQUIRE(said.size() == 3);
  CHECK(variants::get<agent::FirstStep>(said[0].second).step == 3);
  CHECK(variants::get<agent::ExcludeNode>(said[1].second).reason == "hot");
}

TEST_CASE("Session: asked to stop it leaves at the next boundary, the device's work done before") {
  AgentThread agent(1, 1);
  ServerThread server;
  auto session = make_session(server, agent.path());
  int num_finished = 0;
  const auto finish = [&] { ++num_finished; };
  CHECK_FALSE(session.should_stop(1, finish));
  CHECK(agent.read(0).step == 1);
  CHECK(num_finished == 0);
  agent.on_io_thread([&] {
    agent.pages().request_stop(StopRequest::kPreemption, Clock::now() + std::chrono::seconds(9));
  });
  CHECK_FALSE(session.should_stop(2, finish));
  CHECK(agent.read(0).step == 2);
  CHECK(session.should_stop(3, finish));
  CHECK(agent.read(0).phase == ProgressPhase::kCheckpoint);
  CHECK(num_finished == 2);
  CHECK(agent.read(0).step == 2);
  CHECK(agent.read(0).steps_done == 2);
}

TEST_CASE("Session: a store that is gone costs the agreement, not the step") {
  const LogLines lines;
  AgentThread agent(1, 1);
  auto server = std::make_unique<ServerThread>();
  auto session = make_session(*server, agent.path());
  agent.on_io_thread([&] { agent.pages().request_stop(StopRequest::kPreemption, Clock::now()); });
  server->kill();
  CHECK_FALSE(session.should_stop(1));
  CHECK(agent.read(0).step == 1);
  CHECK_FALSE(lines.await("can't agree on a step").empty());
}

// A store whose calls all take as long as they may.
class SilentStore final : public test::SharedStore {
 public:
  std::int64_t add(std::string_view, std::int64_t) override {
    std::this_thread::sleep_for(std::min(timeout(), std::chrono::milliseconds(20'000)));
    throw Error(ErrorCode::kTimeout, "silent");
  }
};

TEST_CASE("Session: a store that is silent costs the step no more than the notice has left") {
  AgentThread agent(1, 1);
  WorkerEnv env;
  env.round = 1;
  env.agent_socket = agent.path();
  Session session(env, [] { return std::make_unique<SilentStore>(); });
  const auto begun = Clock::now();
  agent.on_io_thread([&] {
    agent.pages().request_stop(StopRequest::kPreemption, begun + std::chrono::milliseconds(300));
  });
  for (std::uint64_t step = 1; step <= 3; ++step) CHECK_FALSE(session.should_stop(step));
  CHECK(Clock::now() - begun < std::chrono::seconds(3));
  CHECK(agent.read(0).step == 3);
}

TEST_CASE("Session: it trains all the same without an agent, or with one of another round") {
  const LogLines lines;
  ServerThread server;
  auto alone = make_session(server, "");
  alone.progress().begin_step(1);
  CHECK_FALSE(alone.exclude_node("x"));
  CHECK_FALSE(alone.stop_job("x"));
  CHECK(lines.all().empty());
  AgentThread agent(2, 1);
  auto late = make_session(server, agent.path(), 1);
  late.progress().begin_step(1);
  CHECK_FALSE(agent.read(0).connected);
  CHECK(test::contains(lines.await("no progress is reported"), "round 1"));
}

}  // namespace
}  // namespace ddprun
