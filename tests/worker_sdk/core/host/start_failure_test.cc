// SPDX-License-Identifier: Apache-2.0
// Ranks that die, or stand still, while a communicator is made. The others learn which one, within
// a second if it can be known. They wait no longer than they were told.
#include <sys/socket.h>

#include <random>

#include "common/socket.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/worker_sdk/core/host/rank_processes.h"
#include "worker_sdk/core/host/bootstrap.h"

using namespace ddprun;
using namespace ddprun::host;
using ddprun::test::code_of;
using ddprun::test::Contains;
using namespace std::chrono_literals;

namespace {

void stay(Communicator& world, RankReport&) {
  for (;;) world.barrier();
}

// A rank that publishes its record and takes connections. Then it runs `next`, and stays.
void publish(const WorldOptions& world, int rank, store::Store& store,
             const std::function<void()>& next = {}) {
  PeerRecord record;
  record.node_rank = world.node_rank_of[static_cast<std::size_t>(rank)];
  record.token = random_bytes();
  record.pid = ::getpid();
  record.pid_namespace = pid_namespace();
  const UniqueFd unix_listener = listen_on_unix(&record.unix_name);
  const UniqueFd tcp_listener = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
  record.endpoint = {.host = "127.0.0.1", .port = local_address(tcp_listener.get()).port()};
  store.set("test/host/" + std::to_string(rank), record.encode());
  if (next) next();
  for (;;) ::pause();
}

// This is long before the deadline of the start, 20 s.
void check_all_name(RankProcesses& ranks, std::size_t victim) {
  const bool ended = ranks.wait_for_end(Deadline::after(10s));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == victim) continue;
    const RankReport& report = ranks.report(rank);
    INFO("rank " << rank << " of " << ranks.size() << ", killed " << victim << ": " << report.text);
    REQUIRE(report.finished.load());
    CHECK(report.code == static_cast<int>(ErrorCode::kPeerLost));
    CHECK(std::string(report.text).starts_with("rank " + std::to_string(victim) + " was lost"));
  }
  REQUIRE(ended);
}

}  // namespace

TEST_CASE("host communicator: a rank that dies before it connects is named by the others") {
  const std::vector<std::vector<int>> layouts = {{0, 0, 0}, {0, 1, 2}, {0, 0, 1, 1}, {0, 0, 0, 1}};
  for (const std::vector<int>& layout : layouts) {
    const WorldOptions world{.node_rank_of = layout};
    for (std::size_t victim = 0; victim < layout.size(); ++victim) {
      RankProcesses ranks(world, stay, static_cast<int>(victim), [&](store::Store& store) {
        publish(world, static_cast<int>(victim), store);
      });
      std::vector<std::string> keys;
      for (std::size_t rank = 0; rank < layout.size(); ++rank) {
        keys.push_back("test/host/" + std::to_string(rank));
      }
      ranks.store().set_timeout(20s);
      ranks.store().wait(keys);
      ranks.kill(victim);
      check_all_name(ranks, victim);
    }
  }
}

TEST_CASE("host communicator: a rank killed anywhere in the start is named by the others") {
  std::mt19937 random(20261);
  const std::vector<std::vector<int>> layouts = {{0, 0},    {0, 0, 0},    {0, 1},
                                                 {0, 1, 2}, {0, 0, 1, 1}, {0, 0, 0, 1, 1}};
  for (int i = 0; i < 120; ++i) {
    const auto& layout = layouts[static_cast<std::size_t>(i) % layouts.size()];
    const std::size_t victim = random() % layout.size();
    RankProcesses ranks({.node_rank_of = layout}, stay);
    ranks.store().set_timeout(20s);
    ranks.store().wait({"test/host/" + std::to_string(victim)});
    const timespec delay{.tv_sec = 0, .tv_nsec = static_cast<long>(random() % 8'000'000)};
    ::nanosleep(&delay, nullptr);  // the kill comes at any moment
    ranks.kill(victim);
    check_all_name(ranks, victim);
  }
}

TEST_CASE("host communicator: a rank that fails in the start says why to all nodes") {
  const WorldOptions world{.node_rank_of = {0, 0, 1, 2}};
  RankProcesses ranks(world, stay, 1, [&](store::Store& store) {
    publish(world, 1, store, [&] {
      StartWatch watch(store, options_of(world, 1));
      code_of([&] { watch.end_with(Error(ErrorCode::kSystem, "the disk is on fire")); });
    });
  });
  const Deadline deadline = Deadline::after(10s);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
    while (!ranks.report(rank).finished.load() && !deadline.expired()) ::poll(nullptr, 0, 1);
    REQUIRE(ranks.report(rank).finished.load());
    CHECK(std::string(ranks.report(rank).text)
              .starts_with("rank 1 gave up during start of the communicator: the disk is on fire"));
  }
}

TEST_CASE("connect_to_first: a first rank that stands still is waited for to the deadline only") {
  test::SharedStore store;
  const WorldOptions world = one_node(2);
  StartWatch watch(store, options_of(world, 1));
  std::string name;
  const UniqueFd listener = listen_on_unix(&name);
  // The queue takes one connection, which is somebody else's.
  REQUIRE(::listen(listener.get(), 0) == 0);
  const Topology topology({0, 0}, 1);
  std::string what;
  std::optional<ErrorCode> code;
  std::vector<NodeConnections> others;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 3 && !code; ++i) {
    code = code_of(
        [&] {
          others.push_back(
              connect_to_first(name, Token{}, topology, watch, Deadline::after(200ms)));
        },
        &what);
  }
  CHECK(code == ErrorCode::kTimeout);
  CHECK_THAT(what, Contains("rank 0 does not take connections"));
  CHECK(Clock::now() - start < 5s);
}
