// SPDX-License-Identifier: Apache-2.0
// The emulator's other judge: what a rendezvous with a bug would decide is noticed.
#include "ctl/emulate/table_check.h"

#include "tests/rendezvous/membership/script.h"
#include "tests/support/catch.h"

namespace ddprun::ctl {
namespace {

using namespace membership;
using ddprun::test::Contains;
using membership::testing::Script;

// What a rendezvous says that starts round 1 on two nodes with four workers each.
struct Start {
  Start() {
    settings.min_nodes = settings.max_nodes = 2;
    actions.push_back(action::RoundStarted{"job", 1});
    for (int rank = 0; rank < 2; ++rank) {
      StartRound start;
      start.round = 1;
      start.node_rank = rank;
      start.num_nodes = 2;
      start.world_size = 8;
      start.first_global_rank = 4 * rank;
      actions.push_back(action::Send{1, {1, 0, start}});
    }
  }
  StartRound& told(std::size_t which) {
    return std::get<StartRound>(std::get<action::Send>(actions[which]).envelope.message);
  }
  std::string problem(const JobTable& table) {
    return TableCheck(settings).stepped(table, actions).value_or("");
  }
  JobSettings settings;
  Actions actions;
};

TEST_CASE_METHOD(Start, "TableCheck: each wrong round is named") {
  Script script;
  CHECK(problem(script.table).empty());
  SECTION("a rank twice") {
    told(2).node_rank = told(2).first_global_rank = 0;
    CHECK_THAT(problem(script.table), Contains("node rank 0 is given twice"));
  }
  SECTION("a rank left out") {
    actions.pop_back();
    CHECK_THAT(problem(script.table), Contains("node rank 1 is given to nobody"));
  }
  SECTION("a wrong prefix sum") {
    told(2).first_global_rank = 5;
    CHECK_THAT(problem(script.table), Contains("begins with rank 5"));
  }
  SECTION("two sizes") {
    told(2).world_size = 9;
    CHECK_THAT(problem(script.table), Contains("different sizes"));
  }
  SECTION("too few nodes") {
    settings.min_nodes = settings.max_nodes = 3;
    CHECK_THAT(problem(script.table), Contains("it has 2 nodes; asked for were 3 to 3"));
  }
  SECTION("a round that was there before") {
    TableCheck check(settings);
    REQUIRE_FALSE(check.stepped(script.table, actions));
    CHECK_THAT(check.stepped(script.table, actions).value_or(""), Contains("after round 1"));
  }
}

TEST_CASE("TableCheck: a round beyond the budgets is named") {
  Script j(1, 1);
  j.settings.max_node_losses = 0;
  j.join("1");
  j.fails("1", 1, 5);
  j.says("1", WorkersStopped{1, 1001});
  REQUIRE(j.round("1") == 2);  // after one failure: allowed
  JobSettings strict = j.settings;
  strict.max_restarts = 0;
  Start start;
  strict.min_nodes = strict.max_nodes = 2;
  const auto problem = TableCheck(strict).stepped(j.table, start.actions);
  CHECK_THAT(problem.value_or(""), Contains("after 1 failures; allowed are 0 restarts"));
}

TEST_CASE("TableCheck: two ends, a wait without a deadline, an effect of what should have none") {
  Script j(1);
  TableCheck check(j.settings);
  const auto end = [](int code) {
    return Actions{action::Send{1, {1, 0, JobEnd{code, "", {}, 1}}}};
  };
  CHECK_FALSE(check.stepped(j.table, end(0)));
  CHECK_FALSE(check.stepped(j.table, end(0)));
  CHECK_THAT(check.stepped(j.table, end(75)).value_or(""), Contains("two ends"));

  CHECK_FALSE(TableCheck::waits(j.table, std::nullopt));  // no job
  j.join("1");
  CHECK_FALSE(TableCheck::waits(j.table, j.now));
  CHECK_THAT(TableCheck::waits(j.table, std::nullopt).value_or(""), Contains("without a deadline"));

  const std::string before = TableCheck::fingerprint(j.table);
  CHECK_FALSE(TableCheck::ignored(before, j.table, {action::Log{}}));
  CHECK_THAT(TableCheck::ignored(before, j.table, end(0)).value_or(""), Contains("acted on it"));
  j.says("1", WorkersRunning{1});
  CHECK_THAT(TableCheck::ignored(before, j.table, {}).value_or(""), Contains("changed the job"));
}

}  // namespace
}  // namespace ddprun::ctl
