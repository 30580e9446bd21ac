// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/ddp_rules.h"

#include <vector>

#include "common/error.h"
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::test::Contains;

namespace {

// The text has a letter for each rank: s(hadow), r(an out), l(ocal), a(veraged).
JoinRound judge_text(const char* text) {
  std::vector<std::uint8_t> calls;
  for (; *text != 0; ++text) {
    const JoinCall call = *text == 's'   ? JoinCall::kShadow
                          : *text == 'r' ? JoinCall::kRanOut
                          : *text == 'l' ? JoinCall::kLocal
                                         : JoinCall::kAveraged;
    calls.push_back(static_cast<std::uint8_t>(call));
  }
  return judge(calls);
}

}  // namespace

TEST_CASE("JoinRound: the highest rank of those that go forward has the buffers") {
  const JoinRound all = judge_text("aaa");
  CHECK(all.num_active == 3);
  CHECK(all.source_rank == 2);
  CHECK(all.averages);
  CHECK(all.first_out == -1);
  const JoinRound some = judge_text("aasr");
  CHECK(some.num_active == 2);
  CHECK(some.source_rank == 1);
  CHECK(some.averages);
  CHECK(some.first_out == 2);
}

TEST_CASE("JoinRound: local forwards are shadowed without averages") {
  const JoinRound round = judge_text("sll");
  CHECK(round.num_active == 2);
  CHECK_FALSE(round.averages);
}

TEST_CASE("JoinRound: the highest rank of those that run out last has the model at the end") {
  CHECK(judge_text("rsrs").num_active == 0);
  CHECK(judge_text("rsrs").source_rank == 2);
  CHECK(judge_text("rrr").source_rank == 2);
  CHECK(judge_text("r").source_rank == 0);
}

TEST_CASE("JoinRound: ranks that disagree about no_sync are named") {
  CHECK_THROWS_WITH(judge_text("als"),
                    Contains("rank 0 averages the gradients of this forward, rank 1 does not"));
}
