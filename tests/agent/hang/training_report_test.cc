// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/hang_monitor.h"

#include <bit>
#include <limits>

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::agent;
using namespace std::chrono_literals;

namespace {

std::optional<ProgressWords> page(std::uint64_t step, std::uint64_t reports = 0, double loss = 0,
                                  std::uint64_t samples = 0) {
  ProgressWords words;
  words.phase = WorkPhase::kTrain;
  words.step = step;
  words.num_reports = reports;
  words.loss_bits = std::bit_cast<std::uint64_t>(loss);
  words.samples = samples;
  return words;
}

// A page after `num_steps` steps of 10 ms: 3 ms forward, 5 ms backward, and 4 ms of communication,
// of which `exposed` isn't hidden.
std::optional<ProgressWords> timed_page(std::uint64_t num_steps,
                                        std::chrono::nanoseconds exposed = 1ms) {
  constexpr std::uint64_t kMs = 1'000'000;
  auto words = page(num_steps + 1);
  words->steps =
      StepSums{num_steps,           num_steps * 10 * kMs,
               num_steps * 3 * kMs, num_steps * 5 * kMs,
               num_steps * 4 * kMs, num_steps * static_cast<std::uint64_t>(exposed.count()),
               num_steps * kMs / 2, num_steps * 1000};
  return words;
}

constexpr auto close_to = [](double value) { return Catch::Matchers::WithinAbs(value, 1e-9); };

}  // namespace

TEST_CASE("TrainingReport: the least step, the mean loss, samples per second of all") {
  TrainingReport report;
  const Clock::time_point begin{100s};
  CHECK_FALSE(report.look({}, begin));
  CHECK_FALSE(report.look({page(0), page(0)}, begin));  // nothing has begun
  auto said = report.look({page(2, 1, 0.5, 100), page(1, 1, 1.5, 100)}, begin);
  REQUIRE(said);
  CHECK(said->phase == "train");
  CHECK(said->step == 1);
  CHECK(said->num_ranks == 2);
  CHECK(said->loss == 1.0);
  CHECK(said->samples_per_second == 0);  // not known yet
  CHECK_FALSE(report.look({page(5, 4, 0.5, 900), page(5, 4, 1.5, 900)}, begin + 4900ms));
  said = report.look({page(6, 5, 0.25, 1'100), page(6, 5, 0.75, 1'100)}, begin + 5s);
  REQUIRE(said);
  CHECK(said->loss == 0.5);
  CHECK(said->samples_per_second == 400);
  CHECK_FALSE(report.look({page(6, 5, 0.25, 1'100), page(6, 5, 0.75, 1'100)}, begin + 60s));
}

TEST_CASE("TrainingReport: a loss that is no number is none, a phase is news") {
  TrainingReport report;
  const Clock::time_point begin{100s};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto said = report.look({page(3, 1, nan, 10), page(3)}, begin);
  REQUIRE(said);
  CHECK(said->num_ranks == 0);
  CHECK(said->loss == 0);
  CHECK(said->num_nan == 1);
  auto saves = page(3, 1, nan, 10);
  saves->phase = WorkPhase::kCheckpoint;
  said = report.look({saves, page(3)}, begin + 6s);
  REQUIRE(said);
  CHECK(said->samples_per_second == 0);
}

TEST_CASE(
    "TrainingReport: losses whose sum is no number have a mean, samples count without a loss") {
  TrainingReport report;
  const Clock::time_point begin{100s};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto said =
      report.look({page(1, 1, 1e308, 100), page(1, 1, 1e308, 100), page(1, 1, nan, 100)}, begin);
  REQUIRE(said);
  CHECK(said->loss == Approx(1e308));
  CHECK(said->num_ranks == 2);
  CHECK(said->num_nan == 1);
  said =
      report.look({page(2, 2, nan, 600), page(2, 2, nan, 600), page(2, 2, nan, 600)}, begin + 5s);
  REQUIRE(said);
  CHECK(said->num_ranks == 0);
  CHECK(said->num_nan == 3);
  CHECK(said->samples_per_second == 300);
}

TEST_CASE("TrainingReport: a loss without samples has no samples per second") {
  TrainingReport report;
  auto said = report.look({page(3, 1, 0.5)}, Clock::time_point{100s});
  REQUIRE(said);
  CHECK_FALSE(said->has_samples);
  said = report.look({page(4, 2, 0.5, 32)}, Clock::time_point{106s});
  REQUIRE(said);
  CHECK(said->has_samples);
}

TEST_CASE("TrainingReport: samples of ranks that tell no loss have a rate") {
  TrainingReport report;
  const Clock::time_point begin{100s};
  REQUIRE(report.look({page(2, 0, 0, 64), page(2)}, begin));
  const auto said = report.look({page(7, 0, 0, 564), page(7)}, begin + 5s);
  REQUIRE(said);
  CHECK((said->num_ranks == 0 && said->num_nan == 0));
  CHECK((said->has_samples && said->samples_per_second == 100));
}

TEST_CASE("TrainingReport: the skipped steps are those of the rank that skipped the most") {
  auto few = page(3), many = page(3);
  few->skipped_steps = 2;
  many->skipped_steps = 7;
  TrainingReport report;
  const auto said = report.look({few, many, page(3)}, Clock::time_point{100s});
  REQUIRE(said);
  CHECK(said->skipped_steps == 7);
}

TEST_CASE("TrainingReport: the GPU memory is that of the rank that used the most") {
  auto little = page(3), much = page(3);
  little->gpu_peak_bytes = 4096;
  much->gpu_peak_bytes = 8192;
  TrainingReport report(RankNumbers{4});
  const auto said = report.look({page(3), much, little}, Clock::time_point{100s});
  REQUIRE(said);
  CHECK(said->gpu_peak_bytes == 8192);
  CHECK(said->gpu_peak_rank == 5);
}

TEST_CASE("TrainingReport: a skipped step is news though no other step was made") {
  auto rank = page(3);
  TrainingReport report;
  REQUIRE(report.look({rank}, Clock::time_point{100s}));
  CHECK_FALSE(report.look({rank}, Clock::time_point{110s}));
  ++rank->skipped_steps;
  const auto said = report.look({rank}, Clock::time_point{120s});
  REQUIRE(said);
  CHECK(said->skipped_steps == 1);
}

TEST_CASE("TrainingReport: a page that isn't there is no rank, the others keep their numbers") {
  TrainingReport report(RankNumbers{4});
  CHECK_FALSE(report.look({std::nullopt, std::nullopt}, Clock::time_point{100s}));
  const auto said = report.look({std::nullopt, timed_page(3)}, Clock::time_point{100s});
  REQUIRE(said);
  CHECK(said->step == 4);
  CHECK(said->steps.num_ranks == 1);
  CHECK(said->steps.forward.worst_rank == 5);
}

TEST_CASE("TrainingReport: parts of steps are averaged over ranks, since the last message") {
  TrainingReport report(RankNumbers{4});
  const Clock::time_point begin{100s};
  auto said = report.look({page(1), page(1)}, begin);
  REQUIRE(said);
  CHECK(said->steps == membership::StepSummary{});  // the pages tell no step times
  CHECK_FALSE(report.look({timed_page(9), timed_page(9)}, begin + 4900ms));
  said = report.look({timed_page(10), timed_page(20, 2ms)}, begin + 5s);
  REQUIRE(said);
  CHECK(said->steps.num_ranks == 2);
  CHECK_THAT(said->steps.step.mean, close_to(0.010));
  CHECK_THAT(said->steps.forward.mean, close_to(0.003));
  CHECK_THAT(said->steps.backward.mean, close_to(0.005));
  CHECK_THAT(said->steps.communication.mean, close_to(0.004));
  CHECK_THAT(said->steps.exposed.mean, close_to(0.0015));
  CHECK_THAT(said->steps.exposed.worst, close_to(0.002));
  CHECK(said->steps.exposed.worst_rank == 5);
  CHECK_THAT(said->steps.loader.mean, close_to(0.0005));
  CHECK(said->steps.bytes_per_step == 1000);
  CHECK_THAT(said->steps.overlap(), close_to(0.625));
  CHECK_THAT(said->steps.least_overlap, close_to(0.5));

  // Rank 4 made 10 more steps, each with 3 ms of exposed communication. Rank 5 made none, so its
  // last steps still count.
  auto slower = timed_page(20);
  slower->steps->exposed = 10 * 1'000'000 + 10 * 3'000'000;
  said = report.look({slower, timed_page(20, 2ms)}, begin + 10s);
  REQUIRE(said);
  CHECK_THAT(said->steps.exposed.worst, close_to(0.003));
  CHECK(said->steps.exposed.worst_rank == 4);
  CHECK_THAT(said->steps.exposed.mean, close_to(0.0025));

  // One rank is just writing its times, so its old ones count. Another rank has gone and isn't
  // counted.
  auto writing = timed_page(30);
  writing->steps.reset();
  said = report.look({writing, timed_page(30, 2ms)}, begin + 15s);
  REQUIRE(said);
  CHECK(said->steps.num_ranks == 2);
  CHECK_THAT(said->steps.exposed.worst, close_to(0.003));
  said = report.look({std::nullopt, timed_page(40, 2ms)}, begin + 20s);
  REQUIRE(said);
  CHECK(said->steps.num_ranks == 1);
}

TEST_CASE("TrainingReport: sums that go back, or are the largest numbers, do no harm") {
  TrainingReport report;
  const Clock::time_point begin{100s};
  REQUIRE(report.look({timed_page(10)}, begin));
  auto mad = timed_page(11);
  mad->steps->forward = 0;
  mad->steps->step = mad->steps->bytes = ~std::uint64_t{0};
  auto said = report.look({mad}, begin + 5s);
  REQUIRE(said);
  CHECK(said->steps.forward.mean == 0);
  CHECK(said->steps.step.mean < 2e10);
  // Fewer steps than before, so the count begins anew.
  said = report.look({timed_page(5)}, begin + 10s);
  REQUIRE(said);
  CHECK(said->steps.num_ranks == 1);
  said = report.look({timed_page(6)}, begin + 15s);
  REQUIRE(said);
  CHECK_THAT(said->steps.forward.mean, close_to(0.003));
}
