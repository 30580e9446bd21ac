// SPDX-License-Identifier: Apache-2.0
// Jobs of an earlier term: who waits, who is asked, when they go on, and when they don't.
#include "rendezvous/membership/held_jobs.h"

#include "tests/rendezvous/membership/holder.h"

namespace ddprun::membership::testing {
namespace {

using ddprun::test::Contains;

TEST_CASE("HeldJobs: its nodes are asked, wait, and go on in their order with more than half") {
  Holder h(rows_of(job_state(4, {"a", "b", "c"}, {"spare"})));
  CHECK(h.jobs.num_held() == 1);
  h.joins("spare");
  CHECK_FALSE(h.last.passes);
  REQUIRE(h.asked("spare"));
  h.joins("b");
  REQUIRE(h.asked("b"));
  CHECK(h.asked("b")->term == "t2");
  CHECK(h.asked("b")->basis == "t1");
  h.joins_anew("new");
  CHECK_FALSE(h.last.passes);
  CHECK_FALSE(h.asked("new"));
  h.joins("a");
  h.grants("spare");  // no voter
  h.grants("a");
  CHECK(h.num_restored == 0);
  CHECK(h.through.empty());
  h.joins("c");
  h.grants("c");
  CHECK(h.num_restored == 1);
  CHECK(h.through == Names{"spare", "new", "a", "c"});
  CHECK(h.jobs.num_held() == 0);
  CHECK_THAT(h.logs.back(), Contains("job job is won: 2 of its 3 nodes follow term t2"));
  h.grants("b");  // was asked before, and may not be welcomed before it has voted
  CHECK(h.through.back() == "b");
  CHECK(h.through.size() == 5);
  CHECK_FALSE(h.jobs.next_deadline());
}

TEST_CASE("HeldJobs: half of the nodes are enough for the incumbent alone") {
  for (const bool is_incumbent : {false, true}) {
    Holder h(rows_of(job_state(4, {"a", "b"})), is_incumbent);
    h.joins("a");
    h.grants("a");
    CHECK(h.num_restored == (is_incumbent ? 1 : 0));
  }
}

TEST_CASE("HeldJobs: with two sets of voters a quorum of each is needed") {
  Holder h(rows_of(job_state(5, {"b", "c", "d"})), false, rows_of(job_state(4, {"a", "b", "c"})));
  for (const char* name : {"c", "d"}) {
    h.joins(name);
    h.grants(name);
  }
  CHECK(h.num_restored == 0);
  h.joins("b");
  h.grants("b");
  REQUIRE(h.num_restored == 1);
  CHECK(read_job(rows_by_job(h.restored).at(1), {}).round == 5);
}

TEST_CASE("HeldJobs: a job without voters goes on at once, but each of its agents is asked") {
  Holder h(rows_of(job_state(0, {"a"})));
  CHECK(h.num_restored == 1);
  h.joins_anew("new");
  CHECK(h.last.passes);
  h.joins("a");
  CHECK_FALSE(h.last.passes);
  REQUIRE(h.asked("a"));
  h.grants("a");
  CHECK(h.through == Names{"a"});
  h.closes("a");
  CHECK(h.last.passes);
  h.joins("a");  // it follows this rendezvous by now
  CHECK(h.last.passes);
  CHECK_FALSE(h.asked("a"));
}

TEST_CASE("HeldJobs: votes outlive their connections, Joins don't") {
  Holder h(rows_of(job_state(4, {"a", "b", "c"})));
  h.joins("a");
  h.grants("a");
  h.closes("a");
  h.joins("b");
  h.grants("b");
  CHECK(h.num_restored == 1);
  CHECK(h.through == Names{"b"});
  h.joins("a");
  CHECK(h.last.passes);
}

TEST_CASE("HeldJobs: a Join of the same session on a new connection takes the old one's place") {
  Holder h(rows_of(job_state(4, {"a", "b", "c"})));
  h.joins("a");
  const ConnectionId first = h.connections["a"];
  h.joins("a");
  CHECK(h.closed == std::vector<ConnectionId>{first});
  CHECK(h.asked("a"));
  h.step(event::Message{first, {0, 0, Vote{"t2", true, "t2"}}, {}});  // it came too late
  h.step(event::Closed{first});
  h.joins("b");
  h.grants("b");
  CHECK(h.num_restored == 0);
  h.grants("a");
  CHECK(h.through == Names{"a", "b"});
}

TEST_CASE("HeldJobs: one that never heard of its session is known by its instance") {
  Holder h(rows_of(job_state(4, {"a"})));
  h.joins_anew("a");
  REQUIRE(h.asked("a"));
  h.grants("a");
  CHECK(h.through == Names{"a"});
}

TEST_CASE("HeldJobs: who waits is sent on after 10 s, and its vote stands") {
  Holder h(rows_of(job_state(4, {"a", "b", "c"})));
  h.joins("a");
  h.grants("a");
  h.wait(5s);
  h.joins_anew("new");
  h.wait(5s);
  CHECK(h.is_closed("a"));
  CHECK_FALSE(h.is_closed("new"));
  h.wait(5s);
  CHECK(h.is_closed("new"));
  h.joins("b");
  h.grants("b");
  CHECK(h.num_restored == 1);
}

TEST_CASE(
    "HeldJobs: denied claims send their agents on, too many of them and the job is another's") {
  Holder h(rows_of(job_state(4, {"a", "b", "c", "d"})));
  for (const char* name : {"a", "b"}) h.joins(name);
  h.denies("a");
  CHECK(h.is_closed("a"));
  CHECK_THAT(h.logs.back(),
             Contains("node 0 (a") && Contains("follows term t3, not this rendezvous'"));
  CHECK(h.jobs.num_held() == 1);  // three others may grant
  h.joins("a");
  CHECK(h.is_closed("a"));
  const std::size_t num_lines = h.logs.size();
  h.denies("b");
  CHECK(h.jobs.num_held() == 0);
  CHECK(h.logs.size() == num_lines + 1);
  CHECK_THAT(h.logs.back(), Contains("another rendezvous goes on with the job"));
  h.joins("c");
  CHECK(h.is_closed("c"));
  h.joins_anew("new");
  CHECK(h.is_closed("new"));
  CHECK_FALSE(h.journal.empty());
  h.wait(100s);  // its rendezvous_lost + stop_grace are over: nobody needs its rows any more
  CHECK(h.journal.empty());
  h.joins("c");  // it may be quarrelling with its own rendezvous: no reason to end it
  CHECK_FALSE(h.last.passes);
  CHECK(h.is_closed("c"));
  h.joins_anew("new");
  CHECK(h.last.passes);
  CHECK_FALSE(h.jobs.next_deadline());
}

TEST_CASE("HeldJobs: a job that too few came back to is given up, and unknown from then on") {
  Holder h(rows_of(job_state(4, {"a", "b", "c"})));
  h.wait(85s);
  h.joins("a");
  h.grants("a");
  h.joins_anew("new");
  h.wait(4s);
  CHECK(h.jobs.num_held() == 1);
  h.wait(1s);
  CHECK(h.jobs.num_held() == 0);
  CHECK(h.journal.empty());
  CHECK_THAT(h.logs.back(), Contains("job job is given up: 1 of its 3 nodes came within 90 s"));
  CHECK(h.through == Names{"a", "new"});  // the table refuses the one, and begins with the other
  h.joins("b");
  CHECK(h.last.passes);
}

TEST_CASE("HeldJobs: a node that was away for a term is asked again, by the term that it follows") {
  Holder h(rows_of(job_state(4, {"a"})), false, std::nullopt, {"t1", "t0"});
  h.joins("a");
  h.denies("a", "t0");
  CHECK_FALSE(h.is_closed("a"));
  REQUIRE(h.asked("a"));
  CHECK(h.asked("a")->basis == "t0");
  SECTION("it grants that") {
    h.grants("a");
    CHECK(h.through == Names{"a"});
  }
  SECTION("it may not go round in circles") {
    h.denies("a", "t1");
    CHECK(h.is_closed("a"));
  }
}

TEST_CASE("HeldJobs: who begins anew claims what it has not won yet as before") {
  const journal::Rows before = rows_of(job_state(4, {"a", "b"}));
  const journal::Rows after = rows_of(job_state(5, {"b", "c"}));
  Holder first(after, false, before);
  first.joins("b");
  first.grants("b");
  CHECK(first.num_restored == 0);
  // It led in t2, but not this job.
  const Terms terms{.own = "t3", .bases = {"t2"}, .is_incumbent = true};
  Holder second(first.journal, true, std::nullopt, {"t2"}, "t3");
  CHECK(second.jobs.num_held() == 1);
  second.joins("c");
  second.denies("c", "t1");
  REQUIRE(second.asked("c"));
  CHECK(second.asked("c")->basis == "t1");
  second.grants("c");
  second.joins("b");
  second.grants("b");
  CHECK(second.num_restored == 0);  // one of a, b would be enough for an incumbent
  second.joins("a");                // no node of it any more, by the last batch
  CHECK(second.last.passes);
  SECTION("its mark is part of the commit that begins the term, too") {
    journal::Rows rows = after;
    const Terms challenger{.own = "t2", .bases = {"t1"}, .rows_before = before};
    journal::apply_batch(held_marks(challenger, rows, {}), rows);
    CHECK(rows == first.journal);
    journal::apply_batch(held_marks(terms, rows, {}), rows);
    CHECK(rows == second.journal);
    CHECK(held_marks(terms, rows_of(job_state(0, {"a"})), {}).empty());
  }
  SECTION("it is gone once the job is won") {
    Holder alone(rows_of(job_state(4, {"a"})));
    CHECK(alone.journal.contains("jobs/1/held"));
    alone.joins("a");
    alone.grants("a");
    CHECK_FALSE(alone.journal.contains("jobs/1/held"));
    CHECK_FALSE(alone.restored.contains("jobs/1/held"));
  }
  SECTION("what is no mark loses the job, aloud") {
    journal::Rows rows = after;
    rows["jobs/1/held"] = "{}";
    Holder lost(rows);
    CHECK(lost.journal.empty());
    CHECK(lost.jobs.num_held() == 0);
    CHECK_THAT(lost.logs.back(), Contains("job job is lost") && Contains("\"held\""));
  }
}

TEST_CASE("HeldJobs: what makes no sense from one that waits ends its connection only") {
  Holder h(rows_of(job_state(4, {"a", "b", "c"})));
  h.joins("a");
  h.says("a", Vote{"t9", true, "t9"});  // another's claim
  h.says("a", CutOff{});
  CHECK_FALSE(h.is_closed("a"));
  h.says("a", WorkersRunning{1});
  CHECK(h.is_closed("a"));
  h.joins_anew("new");
  h.grants("new");  // it was not asked
  CHECK(h.num_restored == 0);
  CHECK(h.jobs.num_held() == 1);
  h.says("nobody", Vote{"t2", true, "t2"});
  CHECK_FALSE(h.last.passes);
}

TEST_CASE("HeldJobs: other jobs are not its affair") {
  journal::Rows rows = rows_of(job_state(4, {"a", "b"}), 7);
  rows["finished/9"] = "{}";
  rows["leader/term"] = "{}";
  rows["stores/7/4/log/00000000000000000000"] = "turn";
  rows["jobs/8/state"] = "nonsense";
  Holder h(rows);
  CHECK(h.rows.size() == 2);
  CHECK(h.jobs.last_number() == 8);
  CHECK(h.restored == journal::Rows{{"jobs/8/state", "nonsense"}});  // the table says so
  h.joins_anew("x", "another");
  CHECK(h.last.passes);
  Join unknown = h.join_of("x");
  h.joins("x", unknown);  // a session of nobody: the table refuses it
  CHECK(h.last.passes);
  Join old = h.join_of("a");
  old.version = old.oldest_version = kProtocolVersion + 1;
  h.joins("a", old);
  CHECK(h.last.passes);
  for (const char* name : {"a", "b"}) {
    h.joins(name);
    h.grants(name);
  }
  CHECK(h.restored.contains("stores/7/4/log/00000000000000000000"));
}

TEST_CASE("HeldJobs: a job with fixed ranks waits where a held one has the port") {
  JobState with_port = job_state(4, {"a"});
  with_port.settings.rdzv_backend = kStaticBackend;
  Holder h(rows_of(with_port));
  Join other = h.join_of("x");
  other.run_id = "other";
  other.session.clear();
  h.joins("x", other);
  CHECK(h.last.passes);
  other.settings.rdzv_backend = kStaticBackend;
  h.joins("x", other);
  CHECK_FALSE(h.last.passes);
  h.joins("a");
  h.grants("a");
  CHECK(h.through == Names{"x", "a"});  // the table refuses it, by name
}

TEST_CASE("HeldJobs: they are shown with who has come") {
  Holder h(rows_of(job_state(4, {"a", "b", "c"})));
  h.joins("a");
  h.grants("a");
  h.joins("b");
  h.denies("b");
  const auto all = h.jobs.status();
  REQUIRE(all.size() == 1);
  CHECK(all[0].phase == "held");
  CHECK(all[0].round == 4);
  REQUIRE(all[0].held);
  CHECK(all[0].held->granted == 1);
  CHECK(all[0].held->voters == 3);
  REQUIRE(all[0].nodes.size() == 3);
  CHECK(all[0].nodes[0].phase == "came");
  CHECK(all[0].nodes[0].connected);
  CHECK(all[0].nodes[1].phase == "elsewhere");
  CHECK(all[0].nodes[2].phase == "awaited");
}

}  // namespace
}  // namespace ddprun::membership::testing
