// SPDX-License-Identifier: Apache-2.0
// Parameters that ranks (threads with host communicators) read and change without waiting.
#include "worker_sdk/ddp/async_parameters.h"

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/worker_sdk/core/host/rank_threads.h"
#include "tests/worker_sdk/ddp/recording_communicator.h"

using namespace ddprun;
using namespace ddprun::host;
using namespace std::chrono_literals;
using ddprun::test::code_of;
using ddprun::test::contains;
using ddprun::test::expect;
using ddprun::test::RecordingCommunicator;

namespace {

using Values = std::vector<float>;

constexpr std::size_t kNumValues = 101;  // no number of ranks here divides it

// Values that are all `value`.
Values all_of(float value) { return Values(kNumValues, value); }

}  // namespace

TEST_CASE("AsyncParameters: every update arrives once, and in the end all ranks have the same") {
  for (const int num_ranks : {1, 2, 3}) {
    std::mutex mutex;
    std::set<Values> ends;
    const auto errors = run_world(one_node(num_ranks), [&](Communicator& communicator) {
      AsyncParameters parameters(communicator, kNumValues, {.staleness = 3, .timeout = 20s});
      Values values = all_of(1);
      for (int phase = 0; phase < 2; ++phase) {  // the ranks do different numbers of steps
        parameters.begin(values);
        for (int step = 0; step < 5 + 3 * communicator.rank(); ++step) {
          const ExchangeReport report = parameters.exchange(all_of(6), values);
          expect(report.lead <= 3, "at most 3 steps ahead");
        }
        parameters.finish(values);
      }
      const std::lock_guard lock(mutex);
      ends.insert(values);
    });
    CHECK(all_well(errors));
    REQUIRE(ends.size() == 1);
    float steps = 0;
    for (int rank = 0; rank < num_ranks; ++rank) steps += 2 * (5 + 3 * static_cast<float>(rank));
    for (const float value : *ends.begin()) {
      CHECK(value == Approx(1 + 6 * steps / static_cast<float>(num_ranks)));
    }
  }
}

TEST_CASE("AsyncParameters: all see the same after each step without staleness, whoever is late") {
  std::mutex mutex;
  std::vector<std::set<Values>> seen(20);
  const auto errors = run_world(one_node(3), [&](Communicator& communicator) {
    AsyncParameters parameters(communicator, kNumValues, {.staleness = 0, .timeout = 20s});
    Values values = all_of(0);
    parameters.begin(values);
    for (std::size_t step = 0; step < seen.size(); ++step) {
      const float mine = 0.1F * static_cast<float>(communicator.rank() + 1);
      const ExchangeReport report = parameters.exchange(all_of(mine), values);
      expect(report.lead == 0, "nobody is ahead");
      const std::lock_guard lock(mutex);
      seen[step].insert(values);
    }
    parameters.finish(values);
  });
  CHECK(all_well(errors));
  for (const std::set<Values>& each : seen) CHECK(each.size() == 1);
}

TEST_CASE("AsyncParameters: a fast rank gets as far ahead as it may, and waits there") {
  std::promise<void> is_ahead;
  std::shared_future<void> ahead = is_ahead.get_future().share();
  std::uint64_t most = 0;
  const auto errors = run_world(one_node(2), [&](Communicator& communicator) {
    AsyncParameters parameters(communicator, kNumValues, {.staleness = 2, .timeout = 20s});
    Values values = all_of(0);
    parameters.begin(values);
    for (int step = 0; step < 8; ++step) {
      // The slow rank's first step ends when the other one has done two.
      if (communicator.rank() == 1 && step == 0) {
        expect(ahead.wait_for(20s) == std::future_status::ready, "the other goes on without it");
      }
      const ExchangeReport report = parameters.exchange(all_of(1), values);
      if (communicator.rank() == 1) continue;
      most = std::max(most, report.lead);
      if (step == 1) is_ahead.set_value();
    }
    parameters.finish(values);
  });
  CHECK(all_well(errors));
  CHECK(most == 2);
}

TEST_CASE("AsyncParameters: the longest time-out is no limit, however many steps it is for") {
  const auto errors = run_world(one_node(2), [&](Communicator& communicator) {
    AsyncParameters parameters(
        communicator, kNumValues,
        {.staleness = 1'000'000, .timeout = std::chrono::milliseconds::max()});
    Values values = all_of(0);
    parameters.begin(values);
    parameters.exchange(all_of(1), values);
    parameters.finish(values);
    expect(values == all_of(1), "both steps arrived");
  });
  CHECK(all_well(errors));
}

TEST_CASE("AsyncParameters: spans of another size are refused, and nothing has begun") {
  const auto errors = run_world(one_node(2), [&](Communicator& communicator) {
    AsyncParameters parameters(communicator, kNumValues, {.staleness = 0, .timeout = 20s});
    Values values = all_of(0), fewer(kNumValues - 1), more(kNumValues + 1);
    const auto refuses = [](const auto& call) {
      return code_of(call) == ErrorCode::kInvalidArgument;
    };
    expect(refuses([&] { parameters.finish(values); }), "finish() before begin()");
    expect(refuses([&] { parameters.begin(fewer); }), "begin()");
    parameters.begin(values);
    expect(refuses([&] { parameters.exchange(fewer, values); }), "a short update");
    expect(refuses([&] { parameters.exchange(more, values); }), "a long update");
    expect(refuses([&] { parameters.exchange(all_of(1), fewer); }), "short values");
    expect(refuses([&] { parameters.finish(more); }), "finish()");
    parameters.exchange(all_of(1), values);
    parameters.finish(values);
    expect(values == all_of(1), "both steps arrived");
  });
  CHECK(all_well(errors));
}

TEST_CASE("AsyncParameters: a rank that does no step for too long is named with its step") {
  std::promise<void> is_over;
  std::shared_future<void> over = is_over.get_future().share();
  std::string text;
  run_world(one_node(2), [&](Communicator& communicator) {
    AsyncParameters parameters(communicator, kNumValues, {.staleness = 1, .timeout = 300ms});
    Values values = all_of(0);
    parameters.begin(values);
    if (communicator.rank() == 1) {
      over.wait_for(20s);
      return;
    }
    const auto code = code_of(
        [&] {
          for (int step = 0; step < 5; ++step) parameters.exchange(all_of(1), values);
        },
        &text);
    is_over.set_value();
    expect(code == ErrorCode::kTimeout, "a time-out, not: " + text);
  });
  CHECK(contains(text, "rank 1 is the slowest, at step 1"));
  CHECK(contains(text, "rank 0 has done 2 steps and may be 1 ahead"));
}

TEST_CASE("AsyncParameters: a rank that leaves in the middle ends the others' waits") {
  GENERATE(range(0, 12));  // one time in three the last message comes when its buffer has gone
  std::string text;
  std::optional<ErrorCode> code;
  run_world(one_node(2), [&](Communicator& communicator) {
    AsyncParameters parameters(communicator, kNumValues, {.staleness = 1, .timeout = 20s});
    Values values = all_of(0);
    parameters.begin(values);
    if (communicator.rank() == 1) return;
    code = code_of(
        [&] {
          for (int step = 0; step < 5; ++step) parameters.exchange(all_of(1), values);
        },
        &text);
  });
  CHECK(code == ErrorCode::kPeerLost);
  CHECK(contains(text, "it left the training"));
}

TEST_CASE("AsyncParameters: a communicator of another backend is refused") {
  RecordingCommunicator communicator;
  CHECK(code_of([&] { AsyncParameters(communicator, 1, {}); }) == ErrorCode::kUnsupported);
}
