// SPDX-License-Identifier: Apache-2.0
// The judge of a world notices each wrong decision of a rendezvous.
#include "tests/rendezvous/membership/world/table_check.h"

#include "common/text.h"
#include "tests/rendezvous/membership/script.h"
#include "tests/support/catch.h"

namespace ddprun::membership::testing {
namespace {

using ddprun::test::Contains;

// A judge that has heard two nodes join, on connections 1 and 2.
TableCheck check_of(const JobSettings& settings) {
  TableCheck check;
  for (ConnectionId connection = 1; connection <= 2; ++connection) {
    Join join;
    join.run_id = "job";
    join.settings = settings;
    join.num_workers = 4;
    join.host = concat("node", connection);
    check.heard({connection, {0, 0, join}, {"10.0.0.1", "10.0.0.200"}});
  }
  return check;
}

// The messages of a rendezvous that starts round 1 on two nodes with four workers each.
struct Start {
  Start() {
    for (const char* name : {"1", "2"}) script.join(name);
    actions.push_back(action::RoundStarted{"job", 1});
    for (int rank = 0; rank < 2; ++rank) {
      StartRound start;
      start.round = 1;
      start.node_rank = rank;
      start.num_nodes = 2;
      start.world_size = start.role_world_size = 8;
      start.first_global_rank = start.first_role_rank = 4 * rank;
      actions.push_back(action::Send{static_cast<ConnectionId>(1 + rank), {1, 0, start}});
    }
  }
  StartRound& told(std::size_t which) {
    return variants::get<StartRound>(variants::get<action::Send>(actions[which]).envelope.message);
  }
  std::string problem(TableCheck check) {
    return check.stepped(script.table, event::Tick{}, actions, script.now).value_or("");
  }
  std::string problem() { return problem(check_of(script.settings)); }
  Script script;
  Actions actions;
};

TEST_CASE_METHOD(Start, "TableCheck: each wrong round is named") {
  CHECK(problem().empty());
  SECTION("a rank twice") {
    told(2).node_rank = told(2).first_global_rank = 0;
    CHECK_THAT(problem(), Contains("node rank 0 is given twice"));
  }
  SECTION("a rank left out") {
    actions.pop_back();
    CHECK_THAT(problem(), Contains("node rank 1 is given to nobody"));
  }
  SECTION("a rank out of range") {
    told(2).node_rank = 2;
    CHECK_THAT(problem(), Contains("node rank 2 of 2"));
  }
  SECTION("a wrong prefix sum") {
    told(2).first_global_rank = 5;
    CHECK_THAT(problem(), Contains("begins with rank 5"));
  }
  SECTION("two sizes") {
    told(2).world_size = 9;
    CHECK_THAT(problem(), Contains("different sizes"));
  }
  SECTION("a wrong size") {
    told(1).world_size = told(2).world_size = 9;
    CHECK_THAT(problem(), Contains("it has 9 workers"));
  }
  SECTION("two masters") {
    told(2).master_node_addr = "10.0.0.2";
    CHECK_THAT(problem(), Contains("two masters"));
  }
  SECTION("a restart count of its own") {
    told(1).restart_count = 1;
    CHECK_THAT(problem(), Contains("restart count 1"));
  }
  SECTION("a wrong rank in a role") {
    told(2).first_role_rank = 3;
    CHECK_THAT(problem(), Contains("a rank in a role is wrong"));
  }
  SECTION("a role of a wrong size") {
    told(1).role_world_size = 7;
    CHECK_THAT(problem(), Contains("the size of a role is wrong"));
  }
  SECTION("too few nodes") {
    script.settings.min_nodes = script.settings.max_nodes = 3;
    CHECK_THAT(problem(), Contains("it has 2 nodes; asked for were 3 to 3"));
  }
  SECTION("a round that was there before") {
    TableCheck check = check_of(script.settings);
    REQUIRE(check.stepped(script.table, event::Tick{}, actions, script.now) == std::nullopt);
    CHECK_THAT(problem(check), Contains("after round 1"));
  }
}

TEST_CASE_METHOD(Start,
                 "TableCheck: output that nobody said, or said for another question, is named") {
  const Event told = event::Message{1, {0, 0, Tail{7, {"a line"}, ""}}, {}};
  const auto problem_of = [&](const Actions& said) {
    return check_of(script.settings).stepped(script.table, told, said, script.now).value_or("");
  };
  const action::TailSaid said{1, {7, {"a line"}, ""}};
  CHECK(problem_of({said}).empty());
  CHECK_THAT(problem_of({said, said}), Contains("output is told twice"));
  CHECK_THAT(problem_of({action::TailSaid{2, said.tail}}), Contains("another one's"));
  CHECK_THAT(problem_of({action::TailSaid{1, {8, {}, ""}}}), Contains("another one's"));
}

TEST_CASE("TableCheck: a round beyond the budgets is named") {
  Script j(1, 1);
  j.settings.max_node_losses = 0;
  j.join("1");
  j.fails("1", 1, 5);
  j.says("1", WorkersStopped{1, 1001});
  REQUIRE(j.round("1") == 2);  // it is allowed after one failure
  JobSettings strict = j.settings;
  strict.max_restarts = 0;
  strict.min_nodes = strict.max_nodes = 2;
  TableCheck check = check_of(strict);
  const auto problem = check.stepped(j.table, event::Tick{}, Start().actions, j.now);
  CHECK_THAT(problem.value_or(""), Contains("after 1 failures; allowed are 0 restarts"));
}

TEST_CASE("TableCheck: two ends, a wait without a deadline, an effect of what should have none") {
  Script j(1);
  const auto end = [](int code) {
    return Actions{action::Send{1, {1, 0, JobEnd{code, "", {}, 1}}}};
  };
  CHECK_FALSE(TableCheck::waits(j.table, std::nullopt));  // without a job
  j.join("1");
  CHECK_FALSE(TableCheck::waits(j.table, j.now));
  CHECK_THAT(TableCheck::waits(j.table, std::nullopt).value_or(""), Contains("without a deadline"));

  const std::string before = TableCheck::fingerprint(j.table);
  CHECK_FALSE(TableCheck::ignored(before, j.table, {action::Log{}}));
  CHECK_FALSE(TableCheck::ignored(before, j.table, {action::Close{1}}, true));
  CHECK_THAT(TableCheck::ignored(before, j.table, end(0)).value_or(""), Contains("acted on it"));
  j.says("1", WorkersRunning{1});
  CHECK_THAT(TableCheck::ignored(before, j.table, {}).value_or(""), Contains("changed the job"));

  j.says("1", WorkersSucceeded{1});
  TableCheck check = check_of(j.settings);
  const auto problem_of = [&](int code) {
    return check.stepped(j.table, event::Tick{}, end(code), j.now).value_or("");
  };
  CHECK(problem_of(0).empty());
  CHECK(problem_of(0).empty());
  CHECK_THAT(problem_of(75), Contains("two ends"));
}

}  // namespace
}  // namespace ddprun::membership::testing
