// SPDX-License-Identifier: Apache-2.0
// One of the ranks on several nodes does not come, or calls something else. Every rank's error
// names the right one. No rank waits for its deadline if the reason is known.
#include <barrier>

#include "common/clock.h"
#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/worker_sdk/core/host/rank_threads.h"

using namespace ddprun;
using namespace ddprun::host;
using namespace std::chrono_literals;
using ddprun::test::Contains;

namespace {

struct Outcome {
  std::optional<ErrorCode> code;
  std::string what;
};

// Every rank runs `call` once; all communicators live until the last rank has its outcome.
std::vector<Outcome> outcomes(const std::vector<int>& layout,
                              const std::function<void(Communicator&)>& call) {
  std::vector<Outcome> results(layout.size());
  std::barrier everyone(static_cast<std::ptrdiff_t>(layout.size()));
  const auto errors = run_world({.node_rank_of = layout}, [&](Communicator& ranks) {
    Outcome& own = results[static_cast<std::size_t>(ranks.rank())];
    ranks.barrier();
    everyone.arrive_and_wait();  // no rank can fail inside the barrier any more
    try {
      call(ranks);
    } catch (const Error& error) {
      own = {error.code(), error.what()};
    }
    everyone.arrive_and_wait();
  });
  CHECK(all_well(errors));
  return results;
}

void sum(Communicator& ranks, std::size_t count, std::chrono::milliseconds timeout) {
  std::vector<float> values(count, 1.0f);
  ranks.all_reduce({.data = values.data(), .count = count}, ReduceOp::kSum, {.timeout = timeout});
}

}  // namespace

TEST_CASE("host communicator: a deadline between nodes names the missing rank on every rank") {
  const std::size_t count = GENERATE(std::size_t{10}, std::size_t{300'000});
  const auto results = outcomes({0, 0, 1, 1, 2, 2}, [&](Communicator& ranks) {
    if (ranks.rank() != 5) sum(ranks, count, 1'000ms);
  });
  for (std::size_t rank = 0; rank < 5; ++rank) {
    CHECK(results[rank].code == ErrorCode::kTimeout);
    CHECK_THAT(results[rank].what, Catch::Matchers::EndsWith("waiting for rank 5"));
  }
}

TEST_CASE("host communicator: several missing ranks are all named, and nobody else") {
  const auto results = outcomes({0, 0, 1, 2, 2}, [](Communicator& ranks) {
    if (ranks.rank() != 1 && ranks.rank() != 2) sum(ranks, 100, 1'000ms);
  });
  for (const std::size_t rank : {std::size_t{0}, std::size_t{3}, std::size_t{4}}) {
    CHECK(results[rank].code == ErrorCode::kTimeout);
    CHECK_THAT(results[rank].what, Catch::Matchers::EndsWith("waiting for ranks 1, 2"));
  }
}

TEST_CASE("host communicator: a message's deadline names the peer alone") {
  const auto results = outcomes({0, 1, 2}, [](Communicator& ranks) {
    std::vector<float> values(10);
    if (ranks.rank() == 0) ranks.recv({.data = values.data(), .count = 10}, 2, {.timeout = 100ms});
  });
  CHECK(results[0].code == ErrorCode::kTimeout);
  CHECK_THAT(results[0].what, Catch::Matchers::EndsWith("waiting for rank 2 on another node"));
}

TEST_CASE("host communicator: a different call on one node is a protocol error on every rank") {
  const auto layout = GENERATE(std::vector<int>{0, 1, 2}, std::vector<int>{0, 1, 1, 2, 3},
                               std::vector<int>{0, 0, 0});
  const Clock::time_point start = Clock::now();
  const auto results = outcomes(
      layout, [](Communicator& ranks) { sum(ranks, ranks.rank() == 0 ? 99 : 100, 60'000ms); });
  for (const Outcome& result : results) {
    CHECK(result.code == ErrorCode::kProtocol);
    CHECK_THAT(result.what, Contains("float32 × 99") && Contains("float32 × 100"));
  }
  CHECK(Clock::now() - start < 30s);
}

TEST_CASE("host communicator: allocations of different sizes are found on every node") {
  const auto layout = GENERATE(std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1},
                               std::vector<int>{0, 1, 1, 2}, std::vector<int>{0, 0});
  const Clock::time_point start = Clock::now();
  const auto results = outcomes(
      layout, [](Communicator& ranks) { ranks.allocate(ranks.rank() == 0 ? 1'000 : 100'000); });
  for (const Outcome& result : results) {
    CHECK(result.code == ErrorCode::kProtocol);
    CHECK_THAT(result.what, Contains("allocate(1000 bytes)") && Contains("allocate(100000 bytes)"));
  }
  CHECK(Clock::now() - start < 10s);
}

TEST_CASE("host communicator: different roots that all wait are found at the deadline") {
  const auto results = outcomes({0, 1}, [](Communicator& ranks) {
    std::vector<float> values(10);
    ranks.broadcast({.data = values.data(), .count = 10}, 1 - ranks.rank(), {.timeout = 300ms});
  });
  for (const Outcome& result : results) {
    CHECK(result.code == ErrorCode::kProtocol);
    CHECK_THAT(result.what, Contains("root 0") && Contains("root 1"));
  }
}

TEST_CASE("host communicator: a receive that doesn't match frees the sender") {
  const auto layout = GENERATE(std::vector<int>{0, 0}, std::vector<int>{0, 1});
  const Clock::time_point start = Clock::now();
  const auto results = outcomes(layout, [](Communicator& ranks) {
    std::vector<float> values(20'000'000);  // larger than any buffer on the way
    if (ranks.rank() == 0) {
      ranks.send({.data = values.data(), .count = values.size()}, 1, {.timeout = 60'000ms});
    } else {
      ranks.recv({.data = values.data(), .count = 10}, 0, {.timeout = 60'000ms});
    }
  });
  for (const Outcome& result : results) {
    CHECK(result.code == ErrorCode::kProtocol);
    CHECK_THAT(result.what, Contains("rank 0 sent 80000000 bytes"));
  }
  CHECK(Clock::now() - start < 30s);
}
