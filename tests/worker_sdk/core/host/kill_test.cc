// SPDX-License-Identifier: Apache-2.0
// Ranks that are killed in the middle of collectives. The others learn which one, long before an
// operation's deadline, and nothing is left behind.
#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "tests/support/catch.h"
#include "tests/support/sanitizers.h"
#include "tests/worker_sdk/core/host/rank_processes.h"

using namespace ddprun;
using namespace ddprun::host;
using ddprun::test::Contains;

namespace {

// If the loss of a rank weren't noticed, the others would wait until then.
constexpr std::chrono::minutes kOperationTimeout{10};

Deadline end_of_patience() { return Deadline::after(std::chrono::seconds{60}); }

// Runs every kind of operation, small and large, for ever.
void work_for_ever(Communicator& world, RankReport& report) {
  const auto size = static_cast<std::size_t>(world.size());
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  // These are static: a send may be under way when the call beside it throws, and needs its buffer.
  static std::vector<float> small, large, gathered, message;
  small.resize(1000);
  large.resize(200'000);
  gathered.resize(large.size() * size);
  message.resize(100'000);
  const TensorView whole{.data = gathered.data(), .count = gathered.size()};
  for (;;) {
    world.all_reduce({.data = small.data(), .count = small.size()}, ReduceOp::kSum);
    world.all_reduce({.data = large.data(), .count = large.size()}, ReduceOp::kAverage);
    world.broadcast({.data = large.data(), .count = large.size()}, 0);
    world.all_gather({.data = large.data(), .count = large.size()}, whole);
    world.reduce_scatter(whole, {.data = large.data(), .count = large.size()}, ReduceOp::kMax);
    world.barrier();
    const WorkPtr sent =
        world.send({.data = large.data(), .count = message.size()}, next, {.async = true});
    world.recv({.data = message.data(), .count = message.size()}, previous);
    sent->wait();
    world.allocate(100'000);
    report.steps.fetch_add(1);
  }
}

void kill_once(const WorldOptions& world, std::size_t victim, int delay_us) {
  RankProcesses ranks(world, work_for_ever);
  REQUIRE(ranks.wait_for_steps(1, Deadline::after(std::chrono::seconds{30})));
  // The kill comes at any place of the loop.
  const timespec delay{.tv_sec = 0, .tv_nsec = delay_us * 1000L};
  ::nanosleep(&delay, nullptr);
  ranks.kill(victim);
  REQUIRE(ranks.wait_for_end(end_of_patience()));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == victim) continue;
    const RankReport& report = ranks.report(rank);
    INFO("rank " << rank << " of " << ranks.size() << ", killed " << victim << ": " << report.text);
    CHECK(report.code == static_cast<int>(ErrorCode::kPeerLost));
    // A call that begins after the failure has its own name before this text.
    CHECK_THAT(report.text, Contains("rank " + std::to_string(victim) + " was lost"));
  }
}

}  // namespace

TEST_CASE("host communicator: any rank killed at any time, 200 times, is named by the others") {
  std::mt19937 random(20260);
  const std::vector<std::vector<int>> layouts = {
      {0, 0}, {0, 0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 1, 1}};
  for (int i = 0; i < test::fewer_if_sanitized(200, 50); ++i) {
    const auto& layout = layouts[static_cast<std::size_t>(i) % layouts.size()];
    WorldOptions world{.node_rank_of = layout, .timeout = kOperationTimeout};
    kill_once(world, random() % layout.size(), static_cast<int>(random() % 8000));
  }
}

TEST_CASE("host communicator: a rank killed while it computes is named too") {
  // Rank 1 never enters the call the others are in.
  for (const std::vector<int>& layout : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 0}}) {
    const WorldOptions options{.node_rank_of = layout, .timeout = kOperationTimeout};
    RankProcesses ranks(options, [](Communicator& world, RankReport& report) {
      world.barrier();
      report.steps.store(1);
      if (world.rank() == 1) {
        for (;;) ::pause();
      }
      world.barrier();
    });
    REQUIRE(ranks.wait_for_steps(1, Deadline::after(std::chrono::seconds{30})));
    ranks.kill(1);
    REQUIRE(ranks.wait_for_end(end_of_patience()));
    for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
      INFO(ranks.report(rank).text);
      CHECK(std::string(ranks.report(rank).text).starts_with("rank 1 was lost"));
    }
  }
}

TEST_CASE("host communicator: a killed rank is named though a child of it holds its connections") {
  const struct {
    std::vector<int> layout;
    int victim;
  } cases[] = {{{0, 0, 0}, 1}, {{0, 0, 1, 1}, 0}, {{0, 1, 1, 2, 3}, 1}, {{0, 0, 1, 1}, 3}};
  for (const auto& one : cases) {
    int test_runs[2];  // the child ends when the test has closed the other end everywhere
    REQUIRE(::pipe2(test_runs, O_CLOEXEC) == 0);
    UniqueFd read_end(test_runs[0]), write_end(test_runs[1]);
    const WorldOptions options{.node_rank_of = one.layout, .timeout = kOperationTimeout};
    RankProcesses ranks(options, [&](Communicator& world, RankReport& report) {
      world.barrier();
      if (world.rank() == one.victim && ::fork() == 0) {
        write_end.reset();
        char byte = 0;
        ::_exit(static_cast<int>(::read(read_end.get(), &byte, 1)));
      }
      report.steps.store(1);
      if (world.rank() == one.victim) {
        for (;;) ::pause();
      }
      world.barrier();
    });
    REQUIRE(ranks.wait_for_steps(1, Deadline::after(std::chrono::seconds{30})));
    const auto victim = static_cast<std::size_t>(one.victim);
    ranks.kill(victim);
    REQUIRE(ranks.wait_for_end(end_of_patience()));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (rank == victim) continue;
      INFO("rank " << rank << " of " << ranks.size() << ": " << ranks.report(rank).text);
      CHECK(std::string(ranks.report(rank).text)
                .starts_with("rank " + std::to_string(victim) + " was lost"));
    }
  }
}

TEST_CASE("host communicator: nothing is left in /dev/shm when all ranks are killed") {
  const auto listing = [] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      std::error_code gone;
      // A directory belongs to another ddprun, for its workers' socket.
      const bool is_file = !entry.is_directory(gone) && !gone;
      if (is_file && entry.path().string().find("ddprun") != std::string::npos) {
        names.push_back(entry.path());
      }
    }
    return names;
  };
  RankProcesses ranks(one_node(2), [](Communicator& world, RankReport& report) {
    const auto buffer = world.allocate(1 << 20);
    std::ifstream maps("/proc/self/maps");
    const std::string text{std::istreambuf_iterator<char>(maps), {}};
    // Both memories are anonymous files. They are mapped, and in no directory.
    const bool anonymous = text.find("/memfd:ddprun-node") != std::string::npos &&
                           text.find("/memfd:ddprun-buffer") != std::string::npos;
    if (!anonymous) throw Error(ErrorCode::kSystem, "not the memory that was expected");
    report.steps.store(1);
    work_for_ever(world, report);
  });
  REQUIRE(ranks.wait_for_steps(2, Deadline::after(std::chrono::seconds{30})));
  CHECK(listing().empty());
  ranks.kill(0);
  ranks.kill(1);
  REQUIRE(ranks.wait_for_end(Deadline::after(std::chrono::seconds{10})));
  CHECK(listing().empty());
}
