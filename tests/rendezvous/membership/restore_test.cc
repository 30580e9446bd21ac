// SPDX-License-Identifier: Apache-2.0
// A rendezvous that is killed and goes on from its journal.
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership::testing {
namespace {

using ddprun::test::Contains;

TEST_CASE("Restore: a node that has not come back is waited for, and then done without") {
  Script before(2, 0, journalled());
  before.settings.max_nodes = 4;
  for (const char* name : {"a", "b", "c"}) before.join(name);
  REQUIRE(before.round("a") == 0);
  before.keep();
  const auto j = before.restarted();
  j->join("a");
  j->join("b");
  j->wait_alive(5s);
  CHECK(j->round("a") == 0);
  j->wait_alive(60s);  // the time of restore_grace, the fence and the last call
  CHECK(j->round("a") == 1);
  CHECK(j->round("b") == 1);
}

TEST_CASE("Restore: a round goes on when its nodes are back, budgets are what they were") {
  Script before(2, 1, journalled());
  for (const char* name : {"a", "b"}) before.join(name);
  before.fails("a", 1, 7);
  for (const char* name : {"a", "b"}) before.says(name, WorkersStopped{1, 1});
  REQUIRE(before.round("b") == 2);
  before.keep();
  const auto j = before.restarted();
  CHECK_THAT(j->logs.back(), Contains("running, round 2; its 2 nodes have 10000 ms"));
  for (const char* name : {"a", "b"}) j->join(name);
  j->fails("b", 2, 9);
  for (const char* name : {"a", "b"}) j->says(name, WorkersStopped{2, 1});
  REQUIRE(j->last<JobEnd>("a") != nullptr);
  CHECK(j->got<JobEnd>("a").exit_code == 9);
}

TEST_CASE("Restore: a job of one user is no other user's, before and afterwards") {
  Script before(3, 0, journalled());
  before.user = 1000;
  before.join("a");
  const auto refusal = [](Script& j, std::optional<std::uint32_t> user) {
    j.user = user;
    j.agents["late"] = {};
    j.join("late");
    const auto* refused = j.last<Refused>("late");
    return refused == nullptr ? "taken in" : refused->message;
  };
  CHECK_THAT(refusal(before, 1001), Contains("job job is of user 1000") && Contains("--rdzv-id"));
  before.keep();
  const auto j = before.restarted();
  CHECK_THAT(refusal(*j, 1001), Contains("job job is of user 1000"));
  // Unknown user: the agent came over a network.
  const auto user = GENERATE(std::optional<std::uint32_t>(), 0, 1000);
  CHECK(refusal(*j, user) == "taken in");
}

// Other rendezvous may tell it all the time that they don't lead.
TEST_CASE("Restore: a node that doesn't come back after a take-over has time to stop its workers") {
  MachineOptions options = journalled();
  options.shared = true;
  Script before(1, 0, options);
  before.settings.max_nodes = 2;
  before.timeouts.rendezvous_lost = 20s;
  before.timeouts.shutdown = 3s;
  for (const char* name : {"a", "b"}) before.join(name);
  REQUIRE(before.round("a") == 1);
  before.keep();
  const auto j = before.restarted(options);
  j->join("a");
  j->wait_alive(11s);  // restore_grace
  CHECK_THAT(j->logs.back(), Contains("its workers may run for 14 s more"));
  j->says("a", WorkersStopped{1, 1});
  j->wait_alive(11s);
  CHECK(j->round("a") == 1);
  j->wait_alive(3s);
  CHECK(j->round("a") == 2);
}

TEST_CASE("Restore: a decision that was not heard is said when the node is back") {
  Script before(1, 0, journalled());
  before.join("a");
  before.agents["a"].channel = {};  // StartRound was kept and has never arrived
  before.agents["a"].received.clear();
  before.keep();
  const auto j = before.restarted();
  j->join("a");
  CHECK(j->round("a") == 1);
}

TEST_CASE("Restore: a journal that lost only what a node had said is not taken for its state") {
  Script before(2, 0, journalled());
  for (const char* name : {"a", "b"}) before.join(name);
  before.keep();
  before.says("a", WorkersRunning{1});
  before.closes("a");
  Join again = before.make_join("a");
  before.join("a", again);  // the Welcome confirms it
  REQUIRE(before.agents["a"].channel.acknowledged() == 1);
  const auto j = before.restarted();
  j->agents["a"].received.clear();
  again.confirmed = 1;
  j->join("a", again);
  REQUIRE(j->last<Refused>("a") != nullptr);
  CHECK(j->last<Refused>("a")->exit_code == 75);
  CHECK_THAT(j->last<Refused>("a")->message,
             Contains("what this node said last: its journal lost"));
  CHECK(j->last<Welcome>("a") == nullptr);
  CHECK_FALSE(j->agents["a"].session.empty());
  bool said = false;
  for (const std::string& line : j->logs) {
    said |= line.find("of which 1 are not known here any more") != std::string::npos;
  }
  CHECK(said);
}

std::size_t bytes_of(const journal::Batch& batch) {
  std::size_t bytes = 0;
  for (const auto& row : batch) bytes += row.key.size() + (row.content ? row.content->size() : 0);
  return bytes;
}

TEST_CASE("Restore: the cost of a message to the journal does not grow with the job") {
  constexpr int kNodes = 1000;
  Script j(kNodes, 3, journalled());
  const auto name = [](int i) { return std::to_string(i); };
  for (int i = 0; i < kNodes; ++i) {
    Join join = j.make_join(name(i));
    join.node_rank = i;
    j.join(name(i), join);
  }
  REQUIRE(j.round("0") == 1);
  for (int i = 0; i < kNodes - 1; ++i) j.says(name(i), WorkersRunning{1});
  j.table.take_changes();
  j.says("999", WorkersRunning{1});
  j.table.take_changes();  // after the last node the ledger's row changes, too
  j.says("5", FirstStep{1, 1});
  const journal::Batch numbered = j.table.take_changes();
  CHECK_FALSE(numbered.empty());
  CHECK(bytes_of(numbered) < 4096);
  // An event without a decision costs nothing.
  j.mentions("5", StepTimes{1, {{5, 10ms, 9ms}}});
  CHECK(j.table.take_changes().empty());
  j.acks("5");  // the first acknowledgement confirms StartRound
  j.table.take_changes();
  j.acks("5");
  j.closes("5");
  CHECK(j.table.take_changes().empty());
}

TEST_CASE("Restore: node ranks that were asked for, blame and exclusions are there again") {
  Script before(2, 3, journalled());
  before.settings.max_nodes = 3;
  before.settings.exclude_after = 1;
  const auto join = [](Script& script, const std::string& name, int rank) {
    Join message = script.make_join(name);
    message.node_rank = rank;
    script.join(name, message);
  };
  for (const auto& [name, rank] : {std::pair("a", 0), {"b", 1}, {"c", 2}}) join(before, name, rank);
  REQUIRE(before.round("a") == 1);
  before.fails("b", 1, 7);
  for (const char* name : {"a", "b", "c"}) before.says(name, WorkersStopped{1, 1});
  const auto excluded = before.table.status().at(0).excluded;
  REQUIRE(excluded.size() == 1);
  before.keep();
  const auto j = before.restarted();
  CHECK(j->table.status().at(0).excluded == excluded);
  for (const auto& [name, rank] : {std::pair("a", 0), {"c", 2}}) join(*j, name, rank);
  join(*j, "d", 2);
  REQUIRE(j->last<Refused>("d") != nullptr);
  CHECK(j->agents["d"].closed);
}

TEST_CASE("Restore: rows that make no sense cost their job alone, whatever is wrong with them") {
  Script before(1, 0, journalled());
  before.join("a");
  before.keep();
  const journal::Rows& whole = before.rows;
  const char* const wrong[] = {"",
                               "[]",
                               "{}",
                               "null",
                               "{\"phase\":99}",
                               "{\"deadlines\":[]}",
                               "{\"join\":\"x\"}",
                               "{\"rank_labels\":7}",
                               "{\"entries\":[[1]]}"};
  for (const auto& [key, content] : whole) {
    for (const char* text : wrong) {
      journal::Rows rows = whole;
      rows[key] = text;
      JobTable table(journalled(), [] { return std::string("s"); });
      INFO(key << " = " << text);
      const Actions actions = table.restore(rows, Clock::duration::zero(), before.now);
      REQUIRE_FALSE(actions.empty());
      const auto* log = variants::get_if<action::Log>(&actions.front());
      REQUIRE(log != nullptr);
      if (table.idle()) CHECK_THAT(log->text, Contains("of the journal is lost"));
    }
  }
  journal::Rows rows = whole;
  rows.erase(rows.begin());
  JobTable table(journalled(), [] { return std::string("s"); });
  table.restore(rows, Clock::duration::zero(), before.now);
  CHECK(table.idle());
  for (const journal::RowChange& row : table.take_changes()) CHECK_FALSE(row.content);
}

}  // namespace
}  // namespace ddprun::membership::testing
