// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/flight_recorder.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>

#include "common/text.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"
#include "worker_sdk/core/record_keeper.h"
#include "worker_sdk/core/worker_progress.h"

using namespace ddprun;

namespace {

OperationFacts all_reduce(std::uint64_t sequence, std::uint32_t communicator = 0) {
  OperationFacts facts;
  facts.kind = CollectiveKind::kAllReduce;
  facts.count = 1 << 18;
  facts.communicator = communicator;
  facts.sequence = sequence;
  return facts;
}

std::vector<std::uint64_t> numbers(const FlightRecorder& recorder) {
  std::vector<std::uint64_t> found;
  for (const auto& entry : recorder.entries()) found.push_back(entry.number);
  return found;
}

}  // namespace

TEST_CASE("FlightRecorder: an operation is scheduled, started and ended, at times that grow") {
  FlightRecorder recorder(4, nullptr);
  recorder.add_communicator("host", 2);
  const auto ticket = recorder.schedule(all_reduce(1));
  REQUIRE(recorder.entries().size() == 1);
  CHECK(recorder.entries()[0].state == OperationState::kScheduled);
  CHECK(recorder.entries()[0].started_ns == 0);
  recorder.start(ticket);
  CHECK(recorder.entries()[0].state == OperationState::kStarted);
  recorder.complete(ticket);
  const auto entry = recorder.entries()[0];
  CHECK(entry.state == OperationState::kCompleted);
  CHECK(entry.facts == all_reduce(1));
  CHECK(entry.scheduled_ns > 0);
  CHECK(entry.started_ns >= entry.scheduled_ns);
  CHECK(entry.ended_ns >= entry.started_ns);
  recorder.fail(recorder.schedule(all_reduce(2)));
  CHECK(recorder.entries()[1].state == OperationState::kFailed);
}

TEST_CASE("FlightRecorder: 2,000 operations by default, the 2,001st drops the first") {
  WorkerProgress progress;
  FlightRecorder& recorder = progress.recorder();
  recorder.add_communicator("host", 2);
  for (std::uint64_t i = 1; i <= 2'000; ++i) recorder.complete(recorder.schedule(all_reduce(i)));
  REQUIRE(recorder.entries().size() == 2'000);
  CHECK(recorder.entries().front().number == 1);
  recorder.schedule(all_reduce(2'001));
  REQUIRE(recorder.entries().size() == 2'000);
  CHECK(recorder.entries().front().number == 2);
  CHECK(recorder.entries().back().number == 2'001);
  CHECK_THAT(flight_recorder_json(recorder, WorkerEnv{}, nullptr),
             test::Contains("\"capacity\":2000,"));
}

TEST_CASE("FlightRecorder: the last operations stay, a forgotten one changes nothing") {
  FlightRecorder recorder(3, nullptr);
  recorder.add_communicator("host", 2);
  const auto first = recorder.schedule(all_reduce(1));
  recorder.start(first);
  for (std::uint64_t i = 2; i <= 5; ++i) recorder.schedule(all_reduce(i));
  CHECK(numbers(recorder) == std::vector<std::uint64_t>{3, 4, 5});
  recorder.complete(first);
  for (const auto& entry : recorder.entries()) CHECK(entry.state == OperationState::kScheduled);
}

TEST_CASE("FlightRecorder: one of size 0 records nothing and writes no slot") {
  std::array<OperationSlot, kOperationSlots> slots{};
  FlightRecorder recorder(0, slots.data());
  recorder.add_communicator("host", 2);
  const auto ticket = recorder.schedule(all_reduce(1));
  CHECK(ticket == 0);
  recorder.start(ticket);
  recorder.complete(ticket);
  CHECK(recorder.entries().empty());
  CHECK(slots[0].size == 0);
}

TEST_CASE(
    "FlightRecorder: a communicator's slot has its oldest open operation, then the next one") {
  std::array<OperationSlot, kOperationSlots> slots{};
  FlightRecorder recorder(8, slots.data());
  CHECK(recorder.add_communicator("nccl", 4) == 0);
  CHECK(recorder.add_communicator("host", 2) == 1);
  CHECK(slots[0].size == 4);
  CHECK(slots[0].sequence == 0);
  const auto first = recorder.schedule(all_reduce(1));
  const auto second = recorder.schedule(all_reduce(2));
  const auto other = recorder.schedule(all_reduce(1, 1));
  recorder.start(first);
  recorder.start(second);
  recorder.start(other);
  CHECK(slots[0].sequence == 1);
  CHECK(slots[0].count == 1 << 18);
  CHECK(slots[0].begun > 0);
  CHECK(slots[1].sequence == 1);
  recorder.complete(first);
  CHECK(slots[0].sequence == 2);
  CHECK(slots[0].done == 1);
  CHECK(slots[1].done == 0);
  recorder.complete(second);
  CHECK(slots[0].sequence == 0);
  CHECK(slots[0].done == 2);
  recorder.fail(other);
  CHECK(slots[1].sequence == 0);
}

TEST_CASE("FlightRecorder: more communicators than the page has slots for") {
  std::array<OperationSlot, kOperationSlots> slots{};
  FlightRecorder recorder(8, slots.data());
  for (std::uint32_t i = 0; i <= kOperationSlots; ++i) {
    CHECK(recorder.add_communicator("host", 2) == i);
  }
  recorder.start(recorder.schedule(all_reduce(1, kOperationSlots)));
  CHECK(recorder.entries().size() == 1);
}

TEST_CASE("FlightRecorder: several threads, and one that reads meanwhile") {
  std::array<OperationSlot, kOperationSlots> slots{};
  FlightRecorder recorder(50, slots.data());
  constexpr int kThreads = 3, kEach = 500;
  for (int i = 0; i < kThreads; ++i) recorder.add_communicator("host", 2);
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&recorder, i] {
      for (std::uint64_t n = 1; n <= kEach; ++n) {
        const auto ticket = recorder.schedule(all_reduce(n, i));
        recorder.start(ticket);
        recorder.complete(ticket);
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    const auto seen = numbers(recorder);
    for (std::size_t n = 1; n < seen.size(); ++n) CHECK(seen[n] == seen[n - 1] + 1);
  }
  for (auto& thread : threads) thread.join();
  CHECK(numbers(recorder).back() == kThreads * kEach);
  for (const auto& entry : recorder.entries()) CHECK(entry.state == OperationState::kCompleted);
  for (const OperationSlot& slot : slots) CHECK(slot.sequence == 0);
}

TEST_CASE(
    "WorkerProgress: a failure is told when ranks are missing, lost or out of step, only then") {
  WorkerProgress progress;
  std::vector<OperationFailure> told;
  progress.on_operation_failed([&](const OperationFailure& failure) { told.push_back(failure); });
  using std::chrono::milliseconds;
  const auto fail = [&](ErrorCode code) {
    progress.operation_failed(all_reduce(7), Error(code, "words"), {3}, 4, milliseconds(5));
  };
  fail(ErrorCode::kAborted);
  fail(ErrorCode::kInvalidArgument);
  CHECK(told.empty());
  fail(ErrorCode::kTimeout);
  fail(ErrorCode::kPeerLost);
  fail(ErrorCode::kProtocol);
  REQUIRE(told.size() == 3);
  CHECK(told[0].code == "timeout");
  CHECK(told[0].missing == std::vector<int>{3});
  CHECK(told[0].facts.sequence == 7);
  progress.on_operation_failed(nullptr);
  fail(ErrorCode::kTimeout);
  CHECK(told.size() == 3);
}

TEST_CASE("flight_recorder_file: it is beside the error file, in a directory, or nowhere") {
  WorkerEnv env;
  env.rank = 3;
  CHECK(flight_recorder_file(env) == "");
  env.error_file = "/logs/attempt_0/1/error.json";
  CHECK(flight_recorder_file(env) == "/logs/attempt_0/1/flight_recorder.json");
  env.error_file = "/dev/shm/x/1-error.json";
  CHECK(flight_recorder_file(env) == "/dev/shm/x/1-flight_recorder.json");
  env.error_file = "/tmp/reason";
  CHECK(flight_recorder_file(env) == "/tmp/reason.flight_recorder.json");
  env.recorder_dir = "/data";
  CHECK(flight_recorder_file(env) == "/data/rank_3.json");
  env.num_recorded = 0;
  CHECK(flight_recorder_file(env) == "");
}

TEST_CASE("write_flight_recorder: a link that somebody put beside the file is not followed",
          "[proc]") {
  namespace fs = std::filesystem;
  const test::TempDirectory temp;
  const std::string path = temp.path("rank_0.json"), precious = temp.path("precious");
  // The name that older versions gave to the file while it was written.
  fs::create_symlink(precious, concat(path, ".", ::getpid(), ".new"));
  CHECK(write_flight_recorder(path, "{}\n"));
  CHECK_FALSE(fs::exists(precious));
  CHECK(fs::is_regular_file(fs::symlink_status(path)));
  CHECK(fs::file_size(path) == 3);
}
