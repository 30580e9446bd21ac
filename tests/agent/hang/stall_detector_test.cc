// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/stall_detector.h"

#include <utility>

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr milliseconds kLook = 100ms;

// Two ranks, looked at every 100 ms. what.train(50ms, 20): both do 20 steps.
class Node {
 public:
  explicit Node(HangLimits limits = {}, std::size_t num_ranks = 2)
      : samples(num_ranks, RankSample{ProgressWords{}, ProcessFacts{.state = 'S'}}),
        detector(limits, num_ranks) {
    look();
  }

  ProgressWords& words(std::size_t rank) { return *samples[rank]->words; }
  ProcessFacts& process(std::size_t rank) { return samples[rank]->process; }
  RankView view(std::size_t rank) { return detector.view(rank).value(); }

  void look(milliseconds later = kLook) {
    now += later;
    for (const std::size_t rank : detector.look(samples, now)) said.emplace_back(rank, now);
  }

  void begin_step(std::size_t rank) {
    words(rank).phase = WorkPhase::kTrain;
    words(rank).steps_done = words(rank).step;
    ++words(rank).step;
  }

  // Time passes, and nothing but `each` changes anything, at every look.
  template <typename Each>
  void pass(milliseconds time, Each each) {
    for (auto passed = 0ms; passed < time; passed += kLook) {
      each();
      look();
    }
  }
  void pass(milliseconds time) {
    pass(time, [] {});
  }

  // Every rank in `ranks` does `count` steps of `step` each.
  void train(milliseconds step, int count, std::vector<std::size_t> ranks = {0, 1}) {
    auto next = now;
    const auto end = now + step * count;
    while (now < end) {
      for (; next <= now; next += step) {
        for (const std::size_t rank : ranks) begin_step(rank);
      }
      look();
    }
  }

  // The time of the last report, counted from `since`; −1: none since then.
  milliseconds said_after(Clock::time_point since) const {
    if (said.empty() || said.back().second < since) return -1ms;
    return std::chrono::duration_cast<milliseconds>(said.back().second - since);
  }

  std::vector<std::optional<RankSample>> samples;
  StallDetector detector;
  Clock::time_point now{std::chrono::hours(1)};
  std::vector<std::pair<std::size_t, Clock::time_point>> said;
};

TEST_CASE("StallDetector: a rank with steps of 50 ms that stops is said within 6 s") {
  Node node;
  node.train(50ms, 100);
  REQUIRE(node.said.empty());
  const auto stopped = node.now;
  node.train(50ms, 120, {0});
  REQUIRE(node.said.size() == 1);
  CHECK(node.said[0].first == 1);
  CHECK(node.said_after(stopped) >= 4'900ms);
  CHECK(node.said_after(stopped) <= 6s);
  CHECK(node.view(1).activity == Activity::kBlocked);
}

TEST_CASE("StallDetector: the limit is ten times the slowest of the last 32 steps") {
  Node node;
  node.train(2s, 40);
  CHECK(node.view(0).limit == 20s);
  node.train(100ms, 64);
  // 3 × the slowest step ever, though the window has forgotten that step.
  CHECK(node.view(0).limit == 6s);
}

TEST_CASE("StallDetector: a long first step, and a slow one among the first eight, are no stall") {
  Node node;
  node.begin_step(0);
  node.begin_step(1);
  node.pass(20min);
  node.train(100ms, 5);
  node.pass(20min);
  CHECK(node.said.empty());
  node.pass(11min);
  CHECK(node.said.size() == 2);  // reported after half an hour of silence
}

TEST_CASE("StallDetector: the first steps' time is not learnt") {
  Node node;
  node.train(60s, 7);
  node.train(100ms, 64);
  CHECK(node.view(0).limit == 5s);
}

TEST_CASE("StallDetector: a checkpoint of many steps' time is no stall, nor is its time a step's") {
  Node node;
  node.train(100ms, 50);
  for (const std::size_t rank : {0, 1}) node.words(rank).phase = WorkPhase::kCheckpoint;
  node.pass(10min);
  CHECK(node.said.empty());
  node.train(100ms, 50);
  CHECK(node.said.empty());
  CHECK(node.view(0).limit == 5s);
}

TEST_CASE("StallDetector: a slow checkpoint raises the limit of the next one") {
  Node node;
  node.train(100ms, 50);
  for (const std::size_t rank : {0, 1}) node.words(rank).phase = WorkPhase::kCheckpoint;
  node.pass(20min);
  node.train(100ms, 50);
  node.words(0).phase = WorkPhase::kCheckpoint;
  node.look();
  CHECK(node.view(0).limit >= 200min);
}

TEST_CASE("StallDetector: limits that are set count as they stand, for working ranks too") {
  HangLimits limits;
  limits.step = 2s;
  limits.checkpoint = 3s;
  limits.startup = 1s;
  Node node(limits);
  node.pass(1s);
  CHECK(node.said.size() == 2);
  node.train(100ms, 50);
  CHECK(node.view(0).limit == 2s);
  CHECK(node.view(0).limit_if_working == Clock::duration(2s));
  CHECK(node.view(0).limit_if_blocked == Clock::duration(2s));
  node.words(0).phase = WorkPhase::kCheckpoint;
  node.look();
  CHECK(node.view(0).limit == 3s);
}

TEST_CASE("StallDetector: a stall is said again each time that its length has doubled") {
  HangLimits limits;
  limits.step = 5s;
  Node node(limits);
  node.train(50ms, 100);
  node.train(50ms, 900, {0});    // 45 s
  CHECK(node.said.size() == 4);  // at 5, 10, 20, 40 s
  node.train(50ms, 20);
  node.train(50ms, 120, {0});
  CHECK(node.said.size() == 5);  // it went on, then stopped again
}

TEST_CASE("StallDetector: a stall that ended by itself raises the limit of the next one") {
  Node node;
  node.train(50ms, 100);
  node.train(50ms, 160, {0});
  node.train(50ms, 20);
  CHECK(node.said.size() == 1);
  CHECK(node.view(1).limit > 75s);
}

TEST_CASE("StallDetector: a rank that computes or moves data while it is quiet works") {
  Node node;
  node.train(50ms, 100);
  node.pass(6s, [&] {
    node.process(0).cpu += 90ms;
    node.process(1).bytes += 100'000;
  });
  CHECK(node.said.size() == 2);
  CHECK(node.view(0).activity == Activity::kWorks);
  CHECK(node.view(0).cpu_percent >= 85);
  CHECK(node.view(1).activity == Activity::kWorks);
  CHECK(node.view(0).limit_if_working == Clock::duration(30min));
  CHECK(node.view(0).limit_if_blocked == Clock::duration(5min));
}

TEST_CASE("StallDetector: a rank's activity is of now, also after a long wait") {
  Node node;
  node.pass(29min);
  CHECK(node.view(0).activity == Activity::kBlocked);
  node.pass(5s, [&] { node.process(0).cpu += 90ms; });
  CHECK(node.view(0).activity == Activity::kWorks);
  CHECK(node.view(1).activity == Activity::kBlocked);
  node.pass(6s);
  CHECK(node.view(0).activity == Activity::kBlocked);
}

TEST_CASE("StallDetector: a resumed job's first step number is one step") {
  Node node;
  node.words(0).phase = WorkPhase::kTrain;
  node.pass(1s);
  node.words(0).step = 41'001;
  node.words(0).steps_done = 41'000;
  node.look();
  CHECK(node.view(0).limit == Clock::duration(30min));
  node.pass(20s);
  CHECK(node.said.empty());
}

TEST_CASE("StallDetector: a look at its stack, which stops it for a moment, is no news") {
  HangLimits limits;
  limits.step = 5s;
  Node node(limits);
  node.train(50ms, 100);
  const auto said_at = [&](milliseconds time) {
    node.pass(time);
    return node.said.size();
  };
  CHECK(said_at(5s) == 2);
  node.process(0).state = 't';
  node.look();
  node.process(0).state = 'S';
  CHECK(said_at(4s) == 2);
  CHECK(said_at(2s) == 4);  // at twice the limit
  CHECK(said_at(8s) == 4);
}

TEST_CASE("StallDetector: a rank that uses a GPU or the network works, heartbeats are no work") {
  Node node({}, 3);
  node.train(50ms, 100, {0, 1, 2});
  node.pass(6s, [&] {
    node.process(0).gpu += 98ms;
    node.process(1).network_bytes += 100'000;
    node.process(2).gpu += 1ms;
    node.process(2).network_bytes += 1'000;
  });
  CHECK(node.view(0).activity == Activity::kWorks);
  CHECK(node.view(1).activity == Activity::kWorks);
  CHECK(node.view(2).activity == Activity::kBlocked);
  node.pass(600s, [&] { node.process(2).network_bytes += 1'000; });
  CHECK(node.view(2).activity == Activity::kBlocked);
}

TEST_CASE("StallDetector: bytes that a foreign rank gets over the network are work, not progress") {
  Node node;
  node.samples[0]->words.reset();
  node.look();
  node.pass(601s, [&] { node.process(0).network_bytes += 1'000'000; });
  CHECK(node.said.size() >= 1);
  CHECK(node.view(0).activity == Activity::kWorks);
}

TEST_CASE(
    "StallDetector: a working rank may take as long as it likes before its first eight steps") {
  Node node;
  node.train(100ms, 7);
  node.pass(2h, [&] {
    for (const std::size_t rank : {0, 1}) node.process(rank).cpu += kLook;
  });
  CHECK_FALSE(node.view(0).limit_if_working.has_value());
  CHECK(node.view(0).activity == Activity::kWorks);
  CHECK(node.view(0).quiet >= 2h);
  node.train(100ms, 4);
  CHECK(node.view(0).limit_if_working.has_value());
}

TEST_CASE("StallDetector: a stopped process is stopped, not quiet, and goes on where it was") {
  Node node;
  node.train(50ms, 100);
  const auto stopped = node.now;
  node.process(1).state = 'T';
  node.train(50ms, 120, {0});
  REQUIRE(node.said.size() == 1);
  CHECK(node.said_after(stopped) >= 5s);
  CHECK(node.view(1).activity == Activity::kStopped);
  CHECK(node.view(1).quiet < 200ms);
  node.process(1).state = 'S';
  node.train(50ms, 80, {0});  // 4 s: not yet
  CHECK(node.said.size() == 1);
  node.train(50ms, 40, {0});
  CHECK(node.said.size() == 2);
}

TEST_CASE("StallDetector: nobody's clock ran while the agent itself stood still") {
  Node node;
  node.train(50ms, 100);
  node.look(10min);
  CHECK(node.said.empty());
  CHECK(node.view(0).quiet < 1s);
  node.train(50ms, 50);
  CHECK(node.view(0).limit == 5s);  // the pause did not count as a step of ten minutes
}

TEST_CASE("StallDetector: a foreign worker is stalled when it neither computes nor moves data") {
  Node node;
  for (auto& sample : node.samples) sample->words.reset();
  // The background threads of rank 0 wake up now and then. Rank 1 computes a little.
  node.pass(57s, [&] {
    node.process(0).cpu += 500us;
    node.process(1).cpu += 3ms;
  });
  REQUIRE(node.said.size() == 1);
  CHECK(node.said[0].first == 0);
  CHECK(node.view(0).limit == 10min);
  CHECK_FALSE(node.view(0).words.has_value());
}

TEST_CASE("StallDetector: one byte a minute is a foreign worker's sign of life") {
  Node node;
  for (auto& sample : node.samples) sample->words.reset();
  node.pass(55s);
  for (const std::size_t rank : {0, 1}) ++node.process(rank).bytes;
  node.pass(55s, [&] { node.process(1).cpu += 50ms; });
  CHECK(node.said.empty());
  CHECK(node.view(1).quiet < 1s);
  CHECK(node.view(1).unmoved >= 54s);
}

TEST_CASE("StallDetector: a rank that ended is not stalled, and asks for no look at its family") {
  Node node;
  node.train(50ms, 100);
  node.samples[1].reset();
  node.train(50ms, 400, {0});
  CHECK(node.said.empty());
  CHECK_FALSE(node.detector.view(1).has_value());
  CHECK_FALSE(node.detector.wants_family(1));
}

TEST_CASE("StallDetector: a worker's own processes are looked at when it is quiet for a second") {
  Node node;
  node.train(50ms, 20);
  CHECK_FALSE(node.detector.wants_family(1));
  node.train(50ms, 22, {0});
  CHECK(node.detector.wants_family(1));
  CHECK_FALSE(node.detector.wants_family(0));
}

TEST_CASE("StepHistory: a rank's own time is the part of its steps outside collectives") {
  Node node;
  for (int look = 0; look < 400; ++look) {
    for (const std::size_t rank : {0, 1}) node.begin_step(rank);
    // Rank 0 waits in three of four looks, rank 1 in one of four.
    node.words(0).collectives_begun = node.words(0).collectives_done + (look % 4 != 0 ? 1 : 0);
    node.words(1).collectives_begun = node.words(1).collectives_done + (look % 4 == 0 ? 1 : 0);
    node.look();
  }
  CHECK(node.view(0).step_time == Clock::duration(100ms));
  CHECK(node.view(0).own_step_time.value() < 26ms);
  CHECK(node.view(1).own_step_time.value() > 74ms);
}

TEST_CASE("StepHistory: too few steps have no median, numbers that go back are steps, too") {
  Node node;
  node.train(100ms, 20);
  CHECK_FALSE(node.view(0).step_time.has_value());
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (const std::size_t rank : {0, 1}) node.words(rank).step = 0;
    node.train(100ms, 5);
  }
  CHECK(node.view(0).step_time == Clock::duration(100ms));
}

}  // namespace
}  // namespace ddprun::agent
