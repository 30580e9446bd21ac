// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/training_report.h"

#include <bit>
#include <limits>

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::agent;
using namespace std::chrono_literals;

namespace {

ProgressWords page(std::uint64_t step, std::uint64_t reports = 0, double loss = 0,
                   std::uint64_t samples = 0) {
  ProgressWords words;
  words.phase = WorkPhase::kTrain;
  words.step = step;
  words.num_reports = reports;
  words.loss_bits = std::bit_cast<std::uint64_t>(loss);
  words.samples = samples;
  return words;
}

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

TEST_CASE("TrainingReport: a loss that is no number is none; a phase is news") {
  TrainingReport report;
  const Clock::time_point begin{100s};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto said = report.look({page(3, 1, nan, 10), page(3)}, begin);
  REQUIRE(said);
  CHECK(said->num_ranks == 0);
  CHECK(said->loss == 0);
  auto saves = page(3, 1, nan, 10);
  saves.phase = WorkPhase::kCheckpoint;
  said = report.look({saves, page(3)}, begin + 6s);
  REQUIRE(said);
  CHECK(said->samples_per_second == 0);
}
