// SPDX-License-Identifier: Apache-2.0
#include "tests/worker_sdk/parallel/pipeline_timeline.h"

#include <algorithm>
#include <utility>

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

constexpr PipelineKind kKinds[] = {PipelineKind::kGpipe, PipelineKind::k1F1B};

}  // namespace

TEST_CASE("pipeline_schedule: a step takes as long as m + p - 1 micro-batches on one stage") {
  for (const PipelineKind kind : kKinds) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 16; ++m) {
        for (const auto& [f, b] : {std::pair{1, 1}, {1, 2}, {2, 3}}) {
          const auto timeline = pipeline_timeline(kind, p, m, f, b);
          REQUIRE(static_cast<int>(timeline.size()) == p);
          int end = 0;
          for (const auto& spans : timeline) {
            CHECK(static_cast<int>(spans.size()) == 2 * m);
            int now = 0;
            for (const PipelineSpan& span : spans) {
              CHECK(span.begin >= now);
              now = span.end;
            }
            end = std::max(end, now);
          }
          INFO(to_string(kind) << ", p " << p << ", m " << m << ", f " << f << ", b " << b);
          CHECK(end == (m + p - 1) * (f + b));
        }
      }
    }
  }
}

TEST_CASE("pipeline_schedule: the order of two stages and three micro-batches") {
  CHECK(draw_pipeline(PipelineKind::k1F1B, 2, 3) ==
        "stage 0  F0 F1 ·  B0 F2 B1 ·  B2\n"
        "stage 1  ·  F0 B0 F1 B1 F2 B2\n");
  CHECK(draw_pipeline(PipelineKind::kGpipe, 2, 3) ==
        "stage 0  F0 F1 F2 ·  ·  B0 B1 B2\n"
        "stage 1  ·  F0 F1 F2 B0 B1 B2\n");
}
