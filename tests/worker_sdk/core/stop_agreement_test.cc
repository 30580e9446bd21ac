// SPDX-License-Identifier: Apache-2.0
// Ranks that train in step are asked to stop at different moments, over a real store.
#include "worker_sdk/core/stop_boundary.h"

#include <algorithm>
#include <barrier>
#include <random>
#include <thread>
#include <vector>

#include "rendezvous/store/tcp_store.h"
#include "tests/rendezvous/store_server/server_thread.h"
#include "tests/support/catch.h"

namespace ddprun {
namespace {

using store::testing::ServerThread;

constexpr std::uint64_t kMaxSteps = 200;

// Each rank r begins its steps in turn, and hears of the stop at the beginning of step asked[r]. A
// step is a collective: no rank ends it before all have begun it. A rank that stops leaves the
// collective for good. Returns the step at which each rank stopped; kMaxSteps + 1: it did not.
std::vector<std::uint64_t> stopped_at(ServerThread& server, int round,
                                      const std::vector<std::uint64_t>& asked) {
  const int world_size = static_cast<int>(asked.size());
  std::vector<std::uint64_t> stopped(asked.size(), kMaxSteps + 1);
  std::barrier collective(world_size);
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < asked.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      store::TcpStore store(server.endpoint(), store::TcpStoreOptions{});
      StopAgreement agreement(round, world_size);
      for (std::uint64_t step = 1; step <= kMaxSteps; ++step) {
        if (step >= asked[rank] && agreement.reached(store, step)) {
          stopped[rank] = step;
          break;
        }
        collective.arrive_and_wait();
      }
      collective.arrive_and_drop();
    });
  }
  for (auto& thread : ranks) thread.join();
  return stopped;
}

TEST_CASE("StopAgreement: all ranks leave at one boundary, whenever each of them was asked") {
  ServerThread server;
  std::mt19937 random(7);
  for (int round = 1; round <= 40; ++round) {
    std::vector<std::uint64_t> asked(2 + random() % 4);
    for (auto& step : asked) step = 1 + random() % (round % 2 == 0 ? 3 : 40);
    const auto last = *std::max_element(asked.begin(), asked.end());
    CAPTURE(round, asked);
    const auto stopped = stopped_at(server, round, asked);
    CHECK(std::vector<std::uint64_t>(asked.size(), last + 1) == stopped);
  }
}

TEST_CASE("StopAgreement: a rank that is never asked keeps the others, and none waits for it") {
  ServerThread server;
  const auto stopped = stopped_at(server, 1, {3, kMaxSteps + 1, 5});
  CHECK(stopped == std::vector<std::uint64_t>(3, kMaxSteps + 1));
}

TEST_CASE(
    "StopAgreement: one rank alone stops at its next step, one that is beyond stops at once") {
  ServerThread server;
  CHECK(stopped_at(server, 1, {9}) == std::vector<std::uint64_t>{10});
  store::TcpStore store(server.endpoint(), store::TcpStoreOptions{});
  StopAgreement slow(2, 2), fast(2, 2);
  CHECK_FALSE(fast.reached(store, 30));  // its loop is not in step with the other rank's
  CHECK_FALSE(slow.reached(store, 4));
  CHECK(fast.reached(store, 31));
  CHECK(slow.reached(store, 5));
}

}  // namespace
}  // namespace ddprun
