// SPDX-License-Identifier: Apache-2.0
// Jobs of an earlier term, over more than one: marks, terms that go on or are given up, time.
#include "tests/rendezvous/membership/holder.h"

namespace ddprun::membership::testing {
namespace {

using ddprun::test::Contains;

TEST_CASE("HeldJobs: where the term goes on jobs are its own, but each of their nodes is asked") {
  Holder h(rows_of(job_state(4, {"a", "b"})),
           Terms{.own = "t2", .bases = {"t1", "t0"}, .is_incumbent = true, .goes_on = true});
  CHECK(h.num_restored == 1);
  CHECK(h.jobs.num_held() == 0);
  CHECK(h.jobs.has_won_any());
  CHECK_FALSE(h.journal.contains("jobs/1/held"));
  h.joins("a");
  CHECK_FALSE(h.last.passes);
  h.denies("a", "t0");  // away for a whole term, and for this one's first process
  REQUIRE(h.asked("a"));
  CHECK(h.asked("a")->basis == "t0");
  h.grants("a");
  CHECK(h.through == Names{"a"});
  CHECK_FALSE(h.jobs.next_deadline());
}

TEST_CASE(
    "HeldJobs: a job with a mark is held by it, others go on at once where there is no basis") {
  Holder first(rows_of(job_state(4, {"a", "b"})));
  REQUIRE(first.journal.contains("jobs/1/held"));
  journal::Rows rows = first.journal;
  rows.merge(rows_of(job_state(2, {"c"}), 2));
  for (const bool goes_on : {false, true}) {
    Terms terms{.own = "t2", .is_incumbent = true, .goes_on = goes_on};
    if (goes_on) terms.bases = {"t1"};
    Holder second(rows, terms);
    CHECK(second.jobs.num_held() == 1);
    CHECK(rows_by_job(second.restored).size() == 1);
    CHECK(rows_by_job(second.restored).contains(2));
    second.joins("a");
    REQUIRE(second.asked("a"));
    CHECK(second.asked("a")->basis == "t1");
    second.grants("a");
    CHECK(second.jobs.num_held() == 1);  // no incumbent's half
    second.joins("b");
    second.grants("b");
    CHECK(second.jobs.num_held() == 0);
    const journal::Batch marks = held_marks(terms, rows, {});
    REQUIRE(marks.size() == 1);
    CHECK(marks[0].key == "jobs/1/held");
  }
}

TEST_CASE("HeldJobs: an incumbent's mark is worth no more to whoever takes its rows over") {
  Holder incumbent(rows_of(job_state(4, {"a", "b"})), true);
  for (const bool is_incumbent : {false, true}) {
    Holder next(incumbent.journal,
                Terms{.own = "t3", .bases = {"t2", "t1"}, .is_incumbent = is_incumbent});
    next.joins("a");
    next.grants("a");
    CHECK(next.num_restored == (is_incumbent ? 1 : 0));
  }
}

TEST_CASE("HeldJobs: nodes that follow a term that was given up are asked with it") {
  Holder h(rows_of(job_state(4, {"a", "b", "c"})));
  h.joins("a");
  h.denies("a", "t9");
  h.joins("b");
  CHECK(h.jobs.num_held() == 1);
  h.take(h.jobs.add_bases({"t9"}));
  CHECK_THAT(h.journal.at("jobs/1/held"), Contains("t9"));
  h.denies("b", "t9");  // it was asked before that
  REQUIRE(h.asked("b"));
  CHECK(h.asked("b")->basis == "t9");
  h.grants("b");
  h.joins("a");
  REQUIRE(h.asked("a"));
  h.denies("a", "t9");
  h.grants("a");
  CHECK(h.num_restored == 1);
  h.take(h.jobs.add_bases({"t8", "t2"}));  // won: its last node may follow that
  h.joins("c");
  h.denies("c", "t8");
  REQUIRE(h.asked("c"));
  CHECK(h.asked("c")->basis == "t8");
  h.grants("c");
  CHECK(h.through.back() == "c");
}

TEST_CASE("HeldJobs: a stale job is held again where the term of its nodes is given up in time") {
  Holder h(rows_of(job_state(4, {"a", "b"})));
  h.joins("a");
  h.denies("a", "t9");
  CHECK(h.jobs.num_held() == 0);
  CHECK(h.jobs.num_unsettled() == 1);
  CHECK(h.journal.contains("jobs/1/held"));
  h.take(h.jobs.add_bases({"t1"}));  // no news
  CHECK(h.jobs.num_held() == 0);
  SECTION("in time") {
    h.take(h.jobs.add_bases({"t9"}));
    CHECK(h.jobs.num_held() == 1);
    CHECK_THAT(h.logs.back(), Contains("job job is held again"));
    for (const char* name : {"a", "b"}) {
      h.joins(name);
      REQUIRE(h.asked(name));
      h.grants(name);
    }
    CHECK(h.num_restored == 1);
  }
  SECTION("too late") {
    h.wait(100s);
    CHECK(h.jobs.num_unsettled() == 0);
    CHECK(h.journal.empty());
    h.take(h.jobs.add_bases({"t9"}));
    CHECK(h.jobs.num_held() == 0);
    CHECK(h.journal.empty());
  }
}

TEST_CASE("HeldJobs: a stale job's name stays closed while the other rendezvous is not heard") {
  Holder h(rows_of(job_state(4, {"a"})));
  h.jobs.hear_peer(false);
  h.joins("a");
  h.denies("a");
  h.wait(100s);
  h.joins_anew("new");
  CHECK_FALSE(h.last.passes);
  CHECK(h.is_closed("new"));
  h.jobs.hear_peer(true);
  h.joins_anew("new");
  CHECK(h.last.passes);
}

// On another machine, or after its own was started anew, and twice.
TEST_CASE("HeldJobs: points in time are right however often a job is held before it is won") {
  const journal::Rows rows = rows_of(job_state(4, {"a"}));
  const auto shift_of = [](const journal::Rows& kept, const std::string& own,
                           const RowsClock& clock) {
    Holder h(kept, Terms{.own = own, .bases = {"t1"}}, clock);
    h.joins("a");
    h.says("a", Vote{own, true, own});
    REQUIRE(h.num_restored == 1);
    return h.clock_shift;
  };
  const auto held_with = [](const journal::Rows& kept, const RowsClock& clock) {
    return Holder(kept, Terms{.own = "t2", .bases = {"t1"}}, clock).journal;
  };
  CHECK(shift_of(rows, "t2", {5s, "boot 1"}) == 5s);
  const journal::Rows held = held_with(rows, {5s, "boot 1"});
  CHECK(shift_of(held, "t3", {0s, "boot 1"}) == 5s);
  CHECK(shift_of(held, "t3", {5s, "boot 1"}) == 5s);  // its mark was kept, nothing else
  CHECK(shift_of(held, "t3", {-2s, "boot 2"}) == 3s);
  CHECK(shift_of(held_with(held, {-2s, "boot 2"}), "t3", {0s, "boot 2"}) == 3s);
  CHECK(shift_of(held_with(rows, {5s, ""}), "t3", {1s, ""}) == 6s);  // it can't be read
  // Of a mark without a clock, as an earlier version made them.
  journal::Rows old = held;
  old["jobs/1/held"] = R"({"bases":["t1"],"is_incumbent":false,"voters":[["a"]]})";
  CHECK(shift_of(old, "t3", {7s, "boot 1"}) == 7s);
}

// The table that serves meanwhile.
TEST_CASE("HeldJobs: a round goes on in a table that has begun another job in the meantime") {
  Script before(2, 1, journalled());
  for (const char* name : {"a", "b"}) before.join(name);
  REQUIRE(before.round("b") == 1);
  before.keep();
  journal::Rows rows = before.rows;
  HeldJobs jobs({"t2", {"t1"}}, rows, {}, before.now);
  Script after(2, 1, journalled());
  after.now = before.now;
  after.table.reserve_numbers(jobs.last_number());
  Join other = after.make_join("x");
  other.run_id = "other";
  other.settings.min_nodes = other.settings.max_nodes = 1;
  after.join("x", other);
  CHECK(after.round("x") == 1);
  after.keep();
  CHECK(rows_by_job(after.rows).contains(2));
  journal::Rows won;
  for (const char* name : {"a", "b"}) {
    event::Message message{++before.last_connection, {}, {}};
    Join join = before.make_join(name);
    join.session = before.agents[name].session;
    message.envelope.message = join;
    jobs.step(message, after.now);
    const auto voted = jobs.step(
        event::Message{message.connection, {0, 0, Vote{"t2", true, "t2"}}, {}}, after.now);
    for (const auto& job : voted.restored) won.insert(job.rows.begin(), job.rows.end());
  }
  REQUIRE_FALSE(won.empty());
  after.table.restore(won, {}, after.now);
  after.agents.merge(before.agents);
  after.last_connection = before.last_connection;
  for (const char* name : {"a", "b"}) after.join(name);
  CHECK(after.table.num_jobs() == 2);
  after.says("a", WorkersRunning{1});
  after.fails("b", 1, 3);
  for (const char* name : {"a", "b"}) after.says(name, WorkersStopped{1, 1});
  CHECK(after.round("a") == 2);
  CHECK(after.round("x") == 1);
}

}  // namespace
}  // namespace ddprun::membership::testing
