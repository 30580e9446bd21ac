// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/messages/reports.h"

#include <limits>

#include "tests/support/catch.h"

namespace ddprun::membership {
namespace {

constexpr auto close_to = [](double value) { return Catch::Matchers::WithinAbs(value, 1e-12); };

RankSteps rank(int global_rank, double forward, double communication, double exposed) {
  RankSteps steps;
  steps.global_rank = global_rank;
  steps.forward = forward;
  steps.communication = communication;
  steps.exposed = exposed;
  steps.bytes_per_step = 100.0 * (global_rank + 1);
  return steps;
}

StepSummary of(std::initializer_list<RankSteps> ranks) {
  StepSummary all;
  for (const RankSteps& each : ranks) add(all, summary_of(each));
  return all;
}

TEST_CASE("StepSummary: the mean over ranks, the worst one and whose it is") {
  const StepSummary all = of({rank(0, 1, 4, 1), rank(1, 6, 4, 3), rank(2, 2, 0, 0)});
  CHECK(all.num_ranks == 3);
  CHECK_THAT(all.forward.mean, close_to(3));
  CHECK(all.forward.worst == 6);
  CHECK(all.forward.worst_rank == 1);
  CHECK_THAT(all.bytes_per_step, close_to(200));
  CHECK_THAT(all.overlap(), close_to(0.5));       // 4 of 8 seconds were hidden behind computation
  CHECK_THAT(all.least_overlap, close_to(0.25));  // rank 2 communicates nothing, so it has none
  CHECK(all.least_overlap_rank == 1);
}

TEST_CASE("StepSummary: nodes together are what their ranks together are, in any order") {
  const std::vector<RankSteps> ranks = {rank(0, 3, 4, 1), rank(1, 5, 4, 2), rank(2, 5, 2, 1),
                                        rank(3, 1, 8, 8)};
  const StepSummary all = of({ranks[0], ranks[1], ranks[2], ranks[3]});
  StepSummary uneven = of({ranks[2], ranks[1], ranks[3]});
  add(uneven, of({ranks[0]}));
  StepSummary other = of({ranks[0]});
  add(other, of({ranks[3], ranks[2], ranks[1]}));
  for (const StepSummary& each : {uneven, other}) {
    CHECK(each.num_ranks == 4);
    CHECK_THAT(each.forward.mean, close_to(all.forward.mean));
    CHECK_THAT(each.overlap(), close_to(all.overlap()));
    // Ranks 1 and 2 have the same value; the lower rank counts.
    CHECK(each.forward.worst_rank == 1);
    CHECK(each.least_overlap_rank == 3);
    CHECK(each.least_overlap == 0);
  }
}

TEST_CASE("StepSummary: nobody adds nothing, one rank that is alone has no overlap") {
  StepSummary all;
  add(all, {});
  CHECK(all == StepSummary{});
  add(all, summary_of(rank(0, 1, 0, 0)));
  const StepSummary before = all;
  add(all, {});
  CHECK(all == before);
  CHECK(all.overlap() == 0);
  CHECK(all.least_overlap_rank == -1);
}

TEST_CASE("StepSummary: impossible figures of an agent are bounded") {
  StepSummary mad = of({rank(0, 1, 4, 1)});
  mad.num_ranks = std::numeric_limits<int>::max();
  StepSummary all = mad;
  add(all, mad);
  CHECK(all.num_ranks == std::numeric_limits<int>::max());
  CHECK_THAT(all.forward.mean, close_to(1));
  all.num_ranks = -5;
  mad.forward.mean = std::numeric_limits<double>::quiet_NaN();
  mad.exposed.mean = -1;
  mad.num_ranks = -5;
  const auto object = json_of(mad);
  const auto back = read_json<StepSummary>(JsonFields(object, "step_parts"));
  CHECK(back.num_ranks == 0);
  CHECK(back.forward.mean == 0);
  CHECK(back.exposed.mean == 0);
}

}  // namespace
}  // namespace ddprun::membership
