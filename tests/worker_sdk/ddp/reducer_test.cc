// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/reducer.h"

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/worker_sdk/ddp/recording_communicator.h"

using namespace ddprun;
using ddprun::test::Contains;
using test::RecordingCommunicator;

namespace {

// Four parameters "a" "b" "c" "d" of 100 floats; buckets of two after the rebuild.
struct ReducerFixture {
  RecordingCommunicator communicator;
  Reducer reducer{communicator,
                  {{.name = "a", .count = 100},
                   {.name = "b", .count = 100},
                   {.name = "c", .count = 100},
                   {.name = "d", .count = 100}},
                  {.first_bytes = 800, .cap_bytes = 800}};

  void mark(const std::vector<std::size_t>& order) {
    for (const std::size_t index : order) reducer.mark_ready(index);
  }
  void iterate(const std::vector<std::size_t>& order) {
    mark(order);
    reducer.finalize();
  }
  void rebuild_after(const std::vector<std::size_t>& order) {
    iterate(order);
    reducer.rebuild(reducer.first_arrival());
    communicator.calls.clear();
  }
};

}  // namespace

TEST_CASE("Reducer: the first iteration averages one bucket, after the last gradient") {
  ReducerFixture f;
  f.mark({3, 2, 1});
  CHECK(f.communicator.calls.empty());
  f.mark({0});
  REQUIRE(f.communicator.calls.size() == 1);
  CHECK(f.communicator.calls[0].op == ReduceOp::kAverage);
  CHECK(f.communicator.calls[0].async);
  CHECK(f.communicator.calls[0].view.data == f.reducer.bucket(0).data);
  f.reducer.finalize();
  CHECK(f.communicator.calls[0].work->waited);
}

TEST_CASE("Reducer: it wants to be rebuilt once, after the first iteration") {
  ReducerFixture f;
  CHECK_FALSE(f.reducer.wants_rebuild());
  f.iterate({3, 1, 2, 0});
  REQUIRE(f.reducer.wants_rebuild());
  f.reducer.rebuild(f.reducer.first_arrival());
  CHECK(f.reducer.plan() == BucketPlan{{3, 1}, {2, 0}});
  CHECK_FALSE(f.reducer.wants_rebuild());
  f.iterate({0, 1, 2, 3});
  CHECK_FALSE(f.reducer.wants_rebuild());
}

TEST_CASE("Reducer: it goes on with the first buckets if there is no rebuild") {
  ReducerFixture f;
  f.iterate({3, 2, 1, 0});
  f.iterate({3, 2, 1, 0});
  CHECK(f.communicator.calls.size() == 2);
}

TEST_CASE("Reducer: a bucket is launched as soon as it is complete, before backward ends") {
  ReducerFixture f;
  f.rebuild_after({3, 2, 1, 0});
  f.mark({3, 2});
  REQUIRE(f.communicator.calls.size() == 1);
  CHECK(f.communicator.calls[0].view.data == f.reducer.bucket(0).data);
  f.communicator.calls[0].work->completed = true;
  f.mark({1, 0});
  f.reducer.finalize();
  const IterationTrace& trace = f.reducer.trace();
  REQUIRE(trace.buckets.size() == 2);
  CHECK(trace.buckets[0].launched <= trace.backward_end);
  CHECK(trace.buckets[0].done_at_backward_end);
  CHECK_FALSE(trace.buckets[1].done_at_backward_end);
  CHECK(trace.first_ready <= trace.buckets[0].launched);
  CHECK(trace.finished >= trace.buckets[1].waited);
}

TEST_CASE("Reducer: the moments of a step are marked, the backward's end before the last launch") {
  ReducerFixture f;
  f.rebuild_after({3, 2, 1, 0});
  // Each mark with the number of launches before it.
  std::vector<std::pair<StepMark, std::size_t>> marks;
  f.reducer.set_marker(
      [&](StepMark mark) { marks.emplace_back(mark, f.communicator.calls.size()); });
  f.iterate({3, 2, 1, 0});
  CHECK(marks == std::vector<std::pair<StepMark, std::size_t>>{{StepMark::kFirstReady, 0},
                                                               {StepMark::kLaunched, 0},
                                                               {StepMark::kBackwardEnd, 1},
                                                               {StepMark::kFinished, 2}});
}

TEST_CASE("Reducer: buckets are launched in order though a later one is complete first") {
  ReducerFixture f;
  f.rebuild_after({3, 2, 1, 0});
  f.mark({0, 1});
  CHECK(f.communicator.calls.empty());
  f.mark({2, 3});
  REQUIRE(f.communicator.calls.size() == 2);
  CHECK(f.communicator.calls[0].view.data == f.reducer.bucket(0).data);
  CHECK(f.communicator.calls[1].view.data == f.reducer.bucket(1).data);
}

TEST_CASE("Reducer: parameters without a gradient are named") {
  ReducerFixture f;
  f.mark({3, 1});
  CHECK(f.reducer.is_ready(3));
  CHECK_FALSE(f.reducer.is_ready(0));
  CHECK_FALSE(f.reducer.is_complete());
  CHECK_THROWS_WITH(f.reducer.finalize("use them"),
                    Contains("no gradient for a, c on rank 0: use them"));
}

TEST_CASE("Reducer: its memory outlives all-reduces that are under way, which it ends") {
  RecordingCommunicator communicator;
  int num_buffers_at_wait = 0;
  {
    Reducer reducer(communicator, {{.name = "a", .count = 1, .dtype = DType::kFloat64},
                                   {.name = "b", .count = 1, .dtype = DType::kFloat32}});
    reducer.mark_ready(1);  // b's bucket is under way, and a gets no gradient
    REQUIRE(communicator.calls.size() == 1);
    communicator.calls[0].work->on_wait = [&] {
      CHECK(communicator.num_aborts == 1);
      num_buffers_at_wait = communicator.num_buffers;
      throw Error(ErrorCode::kAborted, "as the reducer wanted it");
    };
    CHECK_THROWS_WITH(reducer.finalize(), Contains("no gradient for a"));
    CHECK_FALSE(communicator.calls[0].work->waited);
  }
  CHECK(communicator.calls[0].work->waited);
  CHECK(num_buffers_at_wait == 1);
  CHECK(communicator.num_buffers == 0);
}

TEST_CASE("Reducer: nothing is aborted where no all-reduce is under way") {
  ReducerFixture done;
  {
    Reducer idle(done.communicator, {{.name = "e", .count = 1}});
    Reducer finished(done.communicator, {{.name = "e", .count = 1}});
    finished.mark_ready(0);
    finished.finalize();
    Reducer complete(done.communicator, {{.name = "e", .count = 1}});
    complete.mark_ready(0);
    done.communicator.calls.back().work->completed = true;
  }
  CHECK(done.communicator.num_aborts == 0);
}

TEST_CASE("Reducer: a gradient that is ready twice is named") {
  ReducerFixture f;
  f.mark({3});
  CHECK_THROWS_WITH(f.reducer.mark_ready(3), Contains("gradient of d became ready twice"));
}

TEST_CASE("Reducer: parameters on two devices are refused by name") {
  RecordingCommunicator communicator;
  const Device gpu{.kind = Device::Kind::kCuda, .index = 0};
  CHECK_THROWS_WITH(Reducer(communicator, {{.name = "host.weight", .count = 1},
                                           {.name = "gpu.weight", .count = 1, .device = gpu}}),
                    Contains("gpu.weight") && Contains("host.weight"));
}

TEST_CASE("Reducer: a model without parameters needs no communication") {
  RecordingCommunicator communicator;
  Reducer reducer(communicator, {});
  reducer.finalize();
  CHECK(communicator.calls.empty());
  CHECK_FALSE(reducer.wants_rebuild());
}

namespace {

// Rank 0 of 2. Four parameters of 100 floats have a bucket each, the last one first.
struct ShardedFixture {
  explicit ShardedFixture(ZeroStage stage)
      : reducer(communicator,
                {{.name = "a", .count = 100},
                 {.name = "b", .count = 100},
                 {.name = "c", .count = 100},
                 {.name = "d", .count = 100}},
                {.first_bytes = 400, .cap_bytes = 400},
                {stage, [this](std::size_t number) { collect(number); }}) {}

  void collect(std::size_t number) {
    collected.push_back(number);
    // A bucket that is still on its way must not be overwritten.
    for (std::size_t b = 0; b < communicator.calls.size(); ++b) {
      const auto& call = communicator.calls[b];
      if (call.view.data == reducer.bucket(number).data) CHECK(call.work->waited);
    }
  }

  RecordingCommunicator communicator;
  std::vector<std::size_t> collected;
  Reducer reducer;
};

}  // namespace

TEST_CASE("Reducer, ZeRO: buckets are there at once, for good, the last parameters first") {
  for (const ZeroStage stage : {ZeroStage::kOptimizer, ZeroStage::kGradients}) {
    ShardedFixture f(stage);
    CHECK(f.reducer.plan() == BucketPlan{{3}, {2}, {1}, {0}});
    CHECK(f.reducer.order() == std::vector<std::size_t>{3, 2, 1, 0});
    for (const std::size_t index : {1, 3, 2, 0}) f.reducer.mark_ready(index);
    f.reducer.finalize();
    CHECK_FALSE(f.reducer.wants_rebuild());
  }
}

TEST_CASE("Reducer, ZeRO-1: each bucket is reduce-scattered in its place once it is complete") {
  ShardedFixture f(ZeroStage::kOptimizer);
  f.reducer.mark_ready(2);
  CHECK(f.communicator.calls.empty());
  f.reducer.mark_ready(3);
  REQUIRE(f.communicator.calls.size() == 2);
  for (std::size_t b = 0; b < 2; ++b) {
    const auto& call = f.communicator.calls[b];
    CHECK(call.view.data == f.reducer.bucket(b).data);
    CHECK(call.op == ReduceOp::kAverage);
    CHECK(call.async);
    CHECK(call.output.data == call.view.data);  // rank 0's part comes first
    CHECK(call.output.count * 2 == call.view.count);
    CHECK(call.output.data == f.reducer.shard(b).data);
  }
  CHECK(f.reducer.bucket(0).data != f.reducer.bucket(2).data);
  CHECK(f.collected == std::vector<std::size_t>{0, 1});
}

TEST_CASE("Reducer: NCCL sums gradients that were multiplied by a rank's share") {
  for (const ZeroStage stage : {ZeroStage::kOff, ZeroStage::kOptimizer, ZeroStage::kGradients}) {
    for (const int num_ranks : {1, 4, 8}) {
      RecordingCommunicator communicator;
      communicator.name = "nccl";
      communicator.num_ranks = num_ranks;
      std::size_t num_asked = 0;
      Reducer reducer(communicator, {{.name = "a", .count = 64}}, {},
                      {stage, [&](std::size_t) {
                         ++num_asked;
                         // The hook is asked before anything is sent.
                         CHECK(communicator.calls.empty());
                       }});
      CHECK(reducer.factor() == 1.0 / num_ranks);
      reducer.mark_ready(0);
      REQUIRE(communicator.calls.size() == 1);
      CHECK(communicator.calls[0].op == ReduceOp::kSum);
      CHECK(num_asked == 1);
    }
  }
  RecordingCommunicator other;
  CHECK(Reducer(other, {{.name = "a", .count = 64}}).factor() == 1);
}

TEST_CASE(
    "Reducer, ZeRO-2: buckets take turns in two places, each waited for before it is reused") {
  ShardedFixture f(ZeroStage::kGradients);
  CHECK(f.reducer.bucket(0).data == f.reducer.bucket(2).data);
  CHECK(f.reducer.bucket(0).data != f.reducer.bucket(1).data);
  CHECK(f.reducer.gradient(3).data == f.reducer.bucket(0).data);
  // 100 floats take 7 lines of 64 bytes, and 8 with two ranks. That makes two places and the shards
  // of four.
  CHECK(f.reducer.size_bytes() == 2 * 512 + 4 * 256);
  f.reducer.mark_ready(3);
  f.reducer.mark_ready(2);
  REQUIRE(f.communicator.calls.size() == 2);
  CHECK_FALSE(f.communicator.calls[0].work->waited);
  f.reducer.mark_ready(1);
  CHECK(f.communicator.calls[0].work->waited);
  CHECK_FALSE(f.communicator.calls[1].work->waited);
  f.reducer.mark_ready(0);
  f.reducer.finalize();
  CHECK(f.collected == std::vector<std::size_t>{0, 1, 2, 3});
  for (std::size_t b = 0; b < 4; ++b) {
    CHECK(f.communicator.calls[b].output.data == f.reducer.shard(b).data);
    for (std::size_t other = 0; other < b; ++other) {
      CHECK(f.reducer.shard(b).data != f.reducer.shard(other).data);
    }
  }
}
