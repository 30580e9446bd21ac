// SPDX-License-Identifier: Apache-2.0
// Jobs of an earlier term: who waits, who is asked, when they go on, and when they don't.
#include "rendezvous/membership/held_jobs.h"

#include <algorithm>

#include "tests/rendezvous/membership/job_rows_of.h"
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership::testing {
namespace {

using ddprun::test::Contains;

// h.joins("a"); h.grants("a"); then what came of the last event.
struct Holder {
  explicit Holder(const journal::Rows& kept, bool is_incumbent = false,
                  std::optional<journal::Rows> rows_before = std::nullopt,
                  std::vector<std::string> bases = {"t1"}, const std::string& own = "t2")
      : Holder(kept, Terms{.own = own,
                           .bases = std::move(bases),
                           .is_incumbent = is_incumbent,
                           .rows_before = std::move(rows_before)}) {}
  Holder(const journal::Rows& kept, const Terms& terms, const RowsClock& clock = {})
      : term(terms.own), journal(kept), rows(kept), jobs(terms, rows, clock, now) {
    take(jobs.begin());
  }

  Join join_of(const std::string& name) const {
    Join join;
    join.run_id = "job";
    join.instance = "instance of " + name;
    join.session = name;
    return join;
  }
  void joins(const std::string& name) { joins(name, join_of(name)); }
  void joins(const std::string& name, const Join& join) {
    event::Message message;
    message.connection = connections[name] = ++last_connection;
    message.envelope.message = join;
    step(message);
  }
  void joins_anew(const std::string& name, const std::string& run_id = "job") {
    Join join = join_of(name);
    join.session.clear();
    join.run_id = run_id;
    joins(name, join);
  }
  void says(const std::string& name, AgentMessage said) {
    event::Message message;
    message.connection = connections[name];
    message.envelope.message = std::move(said);
    step(message);
  }
  void grants(const std::string& name) { says(name, Vote{term, true, term}); }
  void denies(const std::string& name, const std::string& follows = "t3") {
    says(name, Vote{term, false, follows});
  }
  void closes(const std::string& name) { step(event::Closed{connections[name]}); }
  void wait(std::chrono::milliseconds time) {
    const auto until = now + time;
    while (jobs.next_deadline() && *jobs.next_deadline() <= until) {
      now = std::max(now, *jobs.next_deadline());
      step(event::Tick{});
    }
    now = until;
  }
  void step(const Event& event) { take(jobs.step(event, now)); }
  void take(HeldJobs::Outcome outcome) {
    last = std::move(outcome);
    for (const Action& action : last.actions) {
      if (const auto* log = std::get_if<action::Log>(&action)) logs.push_back(log->text);
      if (const auto* close = std::get_if<action::Close>(&action)) {
        closed.push_back(close->connection);
      }
    }
    for (const auto& join : last.joins) through.push_back(name_at(join.connection));
    restored.clear();
    for (const auto& job : last.restored) {
      restored.insert(job.rows.begin(), job.rows.end());
      clock_shift = job.clock_shift;
    }
    num_restored += rows_by_job(restored).size();
    journal::apply_batch(last.changes, journal);
  }
  std::string name_at(ConnectionId connection) const {
    for (const auto& [name, at] : connections) {
      if (at == connection) return name;
    }
    return "?";
  }
  // The claim that the last event brought to this agent.
  std::optional<Claim> asked(const std::string& name) const {
    for (const Action& action : last.actions) {
      const auto* send = std::get_if<action::Send>(&action);
      if (send == nullptr || send->connection != connections.at(name)) continue;
      if (const auto* claim = std::get_if<Claim>(&send->envelope.message)) return *claim;
    }
    return std::nullopt;
  }
  bool is_closed(const std::string& name) const {
    return std::ranges::count(closed, connections.at(name)) > 0;
  }

  const std::string term;
  Clock::time_point now{1h};
  journal::Rows journal;
  journal::Rows rows;  // what is nobody's
  HeldJobs jobs;
  HeldJobs::Outcome last;
  journal::Rows restored;         // by it
  Clock::duration clock_shift{};  // of the last one of these
  std::map<std::string, ConnectionId> connections;
  ConnectionId last_connection = 0;
  std::vector<ConnectionId> closed;
  std::vector<std::string> logs, through;
  std::size_t num_restored = 0;
};

using Names = std::vector<std::string>;

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
