// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/step_statistics.h"

#include "tests/support/catch.h"
#include "worker_sdk/ddp/device_steps.h"

using namespace ddprun;
using namespace std::chrono_literals;

namespace {

constexpr auto close_to = [](double value) { return Catch::Matchers::WithinAbs(value, 1e-9); };

// A step that begins at `at`: 4 ms forward, 6 ms backward, two buckets of 1 MB. The first bucket
// runs from 7 to 9 ms, the second one from 9 ms to `end`.
std::optional<StepParts> add_step(StepRecorder& recorder, Clock::time_point at,
                                  Clock::duration end = 12ms) {
  recorder.forward_begins(at);
  IterationTrace trace;
  trace.first_ready = at + 4ms;
  trace.backward_end = at + 10ms;
  trace.finished = at + std::max<Clock::duration>(end, 10ms);
  trace.buckets.push_back({1'000'000, at + 7ms, at + 9ms, false});
  trace.buckets.push_back({1'000'000, at + 9ms, at + end, false});
  return recorder.step_ends(trace);
}

}  // namespace

TEST_CASE("distribution_of: median, mean and p95") {
  CHECK(distribution_of({}).median == 0);
  CHECK(distribution_of({3}).p95 == 3);
  CHECK_THAT(distribution_of({4, 1, 3, 2}).median, close_to(2.5));
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  const Distribution each = distribution_of(hundred);
  CHECK_THAT(each.median, close_to(50.5));
  CHECK_THAT(each.mean, close_to(50.5));
  CHECK(each.p95 == 95);
  CHECK(distribution_of({1, 2}).p95 == 2);
}

TEST_CASE("StepRecorder: the parts of a step are timed, the first step isn't counted") {
  StepRecorder recorder;
  const Clock::time_point begin{100s};
  add_step(recorder, begin, 500ms);
  CHECK(recorder.statistics().num_steps == 0);
  for (int i = 1; i <= 4; ++i) {
    recorder.waited_for_data(2ms);
    recorder.waited_for_data(1ms);
    add_step(recorder, begin + i * 20ms);
  }
  const StepStatistics all = recorder.statistics();
  CHECK(all.num_steps == 4);
  CHECK_THAT(all.step.median, close_to(0.020));
  CHECK_THAT(all.forward.mean, close_to(0.004));
  CHECK_THAT(all.backward.p95, close_to(0.006));
  CHECK_THAT(all.communication.median, close_to(0.005));
  CHECK_THAT(all.exposed.median, close_to(0.002));
  CHECK_THAT(all.overlap, close_to(0.6));
  CHECK_THAT(all.loader.median, close_to(0.003));
  CHECK(all.bytes_per_step == 2'000'000);
}

TEST_CASE("StepRecorder: each step's parts are handed on, but for those that aren't counted") {
  StepRecorder recorder;
  const Clock::time_point begin{100s};
  CHECK_FALSE(add_step(recorder, begin));
  recorder.waited_for_data(3ms);
  const auto parts = add_step(recorder, begin + 20ms);
  REQUIRE(parts);
  CHECK(parts->step == 20ms);
  CHECK(parts->forward == 4ms);
  CHECK(parts->backward == 6ms);
  CHECK(parts->communication == 5ms);
  CHECK(parts->exposed == 2ms);
  CHECK(parts->loader == 3ms);
  CHECK(parts->bytes == 2'000'000);
  CHECK_FALSE(recorder.step_ends({}));
}

TEST_CASE(
    "StepRecorder: a step's duration is that of its own parts, the update before it included") {
  StepRecorder recorder;
  const Clock::time_point begin{100s};
  add_step(recorder, begin, 500ms);  // the warm-up ends at begin + 500 ms
  const auto first = add_step(recorder, begin + 505ms, 15ms);
  const auto second = add_step(recorder, begin + 600ms, 12ms);
  REQUIRE((first && second));
  CHECK(first->step == 20ms);
  CHECK(second->step == 92ms);
}

TEST_CASE("StepRecorder: buckets that overlap are counted once, hidden ones are not exposed") {
  StepRecorder recorder;
  const Clock::time_point at{100s};
  add_step(recorder, at - 1s);
  recorder.forward_begins(at);
  recorder.forward_begins(at + 1ms);  // only the first of several forwards counts
  IterationTrace trace;
  trace.first_ready = at + 2ms;
  trace.backward_end = trace.finished = at + 10ms;
  trace.buckets.push_back({8, at + 3ms, at + 6ms, true});
  trace.buckets.push_back({8, at + 4ms, at + 7ms, true});
  recorder.step_ends(trace);
  const StepStatistics all = recorder.statistics();
  CHECK_THAT(all.forward.median, close_to(0.002));
  CHECK_THAT(all.communication.median, close_to(0.004));
  CHECK(all.exposed.median == 0);
  CHECK_THAT(all.overlap, close_to(1));
}

TEST_CASE("StepRecorder: a backward without a forward before it is no step") {
  StepRecorder recorder;
  add_step(recorder, Clock::time_point{100s});
  recorder.step_ends({});
  CHECK(recorder.statistics().num_steps == 0);
  CHECK(recorder.num_steps() == 2);
  CHECK(recorder.statistics().overlap == 0);
}

TEST_CASE("StepRecorder: a long run keeps the last steps") {
  StepRecorder recorder;
  Clock::time_point at{100s};
  for (std::size_t i = 0; i < StepRecorder::kMaxSteps + 500; ++i) add_step(recorder, at += 20ms);
  CHECK(recorder.statistics().num_steps == StepRecorder::kMaxSteps);
  CHECK_THAT(recorder.statistics().step.p95, close_to(0.020));
}

namespace {

// A device whose clock the test sets, in seconds. It has done everything before `done`.
struct FakeDevice {
  double now = 0, done = 0;
  int num_events = 0;
};

struct FakeEvent {
  void record() { at = device->now; }
  bool has_passed() const { return at <= device->done; }
  double seconds_since(const FakeEvent& earlier) const { return at - earlier.at; }

  FakeDevice* device;
  double at = -1;
};

struct DeviceStepsFixture {
  FakeDevice device;
  DeviceSteps<FakeEvent> steps{[this] { return ++device.num_events, FakeEvent{&device}; }};

  void mark(StepMark mark, double at) {
    device.now = at;
    steps.mark(mark);
  }
  // A step like add_step()'s whose forward begins at `at` on the device.
  void add_step(double at) {
    mark(StepMark::kForward, at);
    add_backward(at);
  }
  void add_backward(double at) {
    mark(StepMark::kFirstReady, at + 0.004);
    mark(StepMark::kLaunched, at + 0.007);
    mark(StepMark::kBackwardEnd, at + 0.010);
    mark(StepMark::kFinished, at + 0.012);
    steps.step_ends(2'000'000, 3ms);
  }
  std::chrono::microseconds forward_of_next() {
    const auto step = steps.take();
    REQUIRE((step && step->forward));
    return std::chrono::round<std::chrono::microseconds>(step->trace.first_ready - *step->forward);
  }
};

}  // namespace

TEST_CASE("DeviceSteps: a step's parts are those of the device") {
  DeviceStepsFixture f;
  f.add_step(5'000);
  f.add_step(5'000.020);
  f.device.done = 5'001;
  StepRecorder recorder;
  std::optional<StepParts> parts;
  while (const auto step = f.steps.take()) {
    recorder.forward_begins(step->forward.value());
    recorder.waited_for_data(step->loader);
    parts = recorder.step_ends(step->trace);
  }
  REQUIRE(parts);
  const auto rounded = [](std::chrono::nanoseconds time) {
    return std::chrono::round<std::chrono::microseconds>(time);
  };
  CHECK(rounded(parts->step) == 20ms);
  CHECK(rounded(parts->forward) == 4ms);
  CHECK(rounded(parts->backward) == 6ms);
  CHECK(rounded(parts->communication) == 5ms);
  CHECK(rounded(parts->exposed) == 2ms);
  CHECK(parts->loader == 3ms);
  CHECK(parts->bytes == 2'000'000);
}

TEST_CASE("DeviceSteps: a step is there once the device has done all of it") {
  DeviceStepsFixture f;
  f.add_step(10);
  f.device.done = 10.0119;
  CHECK_FALSE(f.steps.take());
  f.device.done = 10.0121;
  CHECK(f.steps.take());
  CHECK_FALSE(f.steps.take());
  f.mark(StepMark::kForward, 12);  // this stream is behind
  f.add_backward(11);
  f.device.done = 11.5;
  CHECK_FALSE(f.steps.take());
}

TEST_CASE("DeviceSteps: the first of several forwards counts, or there is none") {
  DeviceStepsFixture f;
  f.device.done = 100;
  f.mark(StepMark::kForward, 10);
  f.add_step(10.001);
  CHECK(f.forward_of_next() == 5ms);
  f.add_backward(11);
  const auto step = f.steps.take();
  REQUIRE(step);
  CHECK_FALSE(step->forward);
}

TEST_CASE("DeviceSteps: a join's shadow step leaves no mark to the next step") {
  DeviceStepsFixture f;
  f.device.done = 100;
  f.mark(StepMark::kFirstReady, 9);
  f.mark(StepMark::kFinished, 9.1);
  f.add_step(10);
  CHECK(f.forward_of_next() == 4ms);
}

TEST_CASE("DeviceSteps: events are used again") {
  DeviceStepsFixture f;
  f.device.done = 100;
  for (int i = 0; i < 10; ++i) {
    f.add_step(i);
    CHECK(f.steps.take());
  }
  // One more is the last step's end.
  CHECK(f.device.num_events == static_cast<int>(kNumStepMarks) + 1);
}

TEST_CASE("StepStatistics: they are told in one line of JSON, and for people") {
  StepRecorder recorder;
  for (int i = 0; i < 3; ++i) add_step(recorder, Clock::time_point{100s} + i * 20ms);
  const StepStatistics all = recorder.statistics();
  CHECK(to_json(all).starts_with(
      R"({"num_steps":2,"step":{"median":0.02,"mean":0.02,"p95":0.02},"forward":{"median":0.004,)"));
  CHECK(to_json(all).ends_with(R"("overlap":0.6,"bytes_per_step":2000000})"));
  CHECK(describe(all) ==
        "step 20.0 ms (p95 20.0): forward 4.0, backward 6.0, communication 5.0 of which 2.0 "
        "exposed (overlap 60 %), data 0.0; 2.0 MB per step");
  StepStatistics alone = all;
  alone.bytes_per_step = 0;
  CHECK(describe(alone) == "step 20.0 ms (p95 20.0): forward 4.0, backward 6.0, data 0.0");
}
