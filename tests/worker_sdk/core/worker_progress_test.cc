// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/worker_progress.h"

#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "common/error.h"
#include "common/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "worker_sdk/core/flight_recorder.h"

using namespace ddprun;
using namespace std::chrono_literals;

namespace {

UniqueFd memory_of(std::size_t size_bytes, std::uint64_t magic) {
  UniqueFd memory(::memfd_create("page", MFD_CLOEXEC));
  REQUIRE(::ftruncate(memory.get(), static_cast<off_t>(size_bytes)) == 0);
  REQUIRE(::pwrite(memory.get(), &magic, sizeof magic, 0) == sizeof magic);
  REQUIRE(::pwrite(memory.get(), &kProgressVersion, sizeof kProgressVersion, 8) == 8);
  return memory;
}

std::uint64_t phase_of(const WorkerProgress& progress) { return progress.page().phase; }

}  // namespace

TEST_CASE("WorkerProgress: a step that begins ends the one before, the first end is said once") {
  WorkerProgress progress;
  std::vector<std::pair<std::uint64_t, std::chrono::nanoseconds>> first;
  progress.on_first_step([&](auto... told) { first.emplace_back(told...); });
  for (const auto spent : {3s, 4s}) progress.add_connecting(spent);
  CHECK(phase_of(progress) == 0);
  progress.begin_step(41);
  CHECK(phase_of(progress) == 1);
  CHECK(progress.page().step == 41);
  CHECK(progress.page().steps_done == 0);
  CHECK(first.empty());
  progress.begin_step(42);
  CHECK(progress.page().steps_done == 41);
  progress.end_step();
  CHECK(progress.page().steps_done == 42);
  progress.end_step();
  CHECK(first == decltype(first){{41, 7s}});
  CHECK(progress.page().own_count == 0);
  progress.set_phase(ProgressPhase::kEvaluate);
  CHECK(phase_of(progress) == 3);
}

TEST_CASE("WorkerProgress: steps are counted where nobody tells their numbers, and only there") {
  WorkerProgress counted;
  std::vector<std::uint64_t> first;
  counted.on_first_step([&](std::uint64_t step, auto) { first.push_back(step); });
  counted.count_step();
  counted.end_counted_step();
  counted.count_step();
  CHECK(counted.page().step == 2);
  CHECK(counted.page().steps_done == 1);
  CHECK(counted.page().own_count == 1);
  CHECK(first == std::vector<std::uint64_t>{0});

  WorkerProgress told;
  told.begin_step(7);
  told.count_step();
  told.end_counted_step();
  CHECK(told.page().step == 7);
  CHECK(told.page().steps_done == 0);
  CHECK(told.page().own_count == 0);

  counted.begin_step(100);  // the loop begins later to tell its steps
  CHECK(counted.page().step == 100);
  CHECK(counted.page().steps_done == 0);
  CHECK(counted.page().own_count == 0);
}

TEST_CASE("WorkerProgress: an agent's page is written in place, another page is refused") {
  const UniqueFd memory = memory_of(kProgressPageBytes, kProgressMagic);
  WorkerProgress progress(memory);
  progress.begin_step(5);
  std::uint64_t step = 0;
  REQUIRE(::pread(memory.get(), &step, sizeof step, 72) == 8);
  CHECK(step == 5);
  CHECK(progress.stop_request() == StopRequest::kNone);
  const std::uint64_t stop = 1, deadline = 7'000'000'000;
  REQUIRE(::pwrite(memory.get(), &stop, sizeof stop, 128) == 8);
  REQUIRE(::pwrite(memory.get(), &deadline, sizeof deadline, 136) == 8);
  CHECK(progress.stop_request() == StopRequest::kPreemption);
  CHECK(progress.stop_deadline() == Clock::time_point(std::chrono::seconds(7)));

  CHECK(test::code_of([] { WorkerProgress bad(memory_of(100, kProgressMagic)); }) ==
        ErrorCode::kProtocol);
  CHECK(test::code_of([] { WorkerProgress bad(memory_of(kProgressPageBytes, 0)); }) ==
        ErrorCode::kProtocol);
}

TEST_CASE("WorkerProgress: a lost peer is the agent's word, also where its page comes late") {
  const UniqueFd memory = memory_of(kProgressPageBytes, kProgressMagic);
  WorkerProgress progress;
  CHECK_FALSE(progress.peer_lost());  // nobody else writes this page
  const std::uint64_t lost = 1;
  REQUIRE(::pwrite(memory.get(), &lost, sizeof lost, 144) == 8);
  progress.move_to(memory);
  CHECK(progress.peer_lost());
  const WorkerProgress of_next_round(memory_of(kProgressPageBytes, kProgressMagic));
  CHECK_FALSE(of_next_round.peer_lost());
  CHECK(progress.peer_lost());
}

TEST_CASE("CollectiveScope: counts an operation, also one that throws") {
  WorkerProgress progress;
  try {
    const CollectiveScope scope(&progress, CollectiveKind::kBroadcast, 0);
    CHECK(progress.page().collectives_begun == 1);
    CHECK(progress.page().collectives_done == 0);
    throw 1;
  } catch (int) {
  }
  CHECK(progress.page().collectives_done == 1);
  CHECK(progress.page().last_collective == static_cast<std::uint64_t>(CollectiveKind::kBroadcast));
  const CollectiveScope nobody(nullptr, CollectiveKind::kBarrier, 0);
}

TEST_CASE("WorkerProgress: the parts of steps add up, and go along to the agent's page") {
  WorkerProgress progress;
  const StepParts parts{20ms, 3ms, 5ms, 4ms, 1ms, 2ms, 1000};
  progress.add_parts(parts);
  progress.add_parts(parts);
  CHECK(progress.page().steps_begun == 2);
  CHECK(progress.page().steps_timed == 2);
  const UniqueFd memory = memory_of(kProgressPageBytes, kProgressMagic);
  progress.move_to(memory);
  progress.add_parts({-1s, 1ms, 0s, 0s, 0s, 0s, 1});  // a time below zero doesn't count
  const std::vector<std::uint64_t> expected = {
      3, 3, 40'000'000, 7'000'000, 10'000'000, 8'000'000, 2'000'000, 4'000'000, 2001};
  std::vector<std::uint64_t> words(expected.size());
  REQUIRE(::pread(memory.get(), words.data(), words.size() * 8, 792) ==
          static_cast<ssize_t>(words.size() * 8));
  CHECK(words == expected);
}
