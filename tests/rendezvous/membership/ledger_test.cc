// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/ledger.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using testing::journalled;
using testing::Script;
using Names = std::vector<std::string>;

RoundRecord record(std::uint64_t round) {
  RoundRecord record;
  record.round = round;
  return record;
}

TEST_CASE("Ledger: each second of a job is in one phase of one round") {
  const Clock::time_point begin{1h};
  Ledger ledger(begin);
  CHECK_FALSE(ledger.ettr());
  ledger.started(record(1), {"b", "a"}, begin + 2s);
  ledger.running(begin + 3s);
  ledger.over("a was lost", 5s, begin + 28s);  // it happened at 23 s
  ledger.stopped(begin + 29s);
  ledger.started(record(2), {"b", "c"}, begin + 31s);
  ledger.over("all failed", 0s, begin + 32s);  // it happened before the workers ran
  ledger.stopped(begin + 33s);

  const RoundRecord& first = ledger.rounds()[0];
  CHECK(first.came == Names{"a", "b"});
  CHECK(first.cause == "a was lost");
  CHECK(first.seconds.rendezvous == 2);
  CHECK(first.seconds.spawn == 1);
  CHECK(first.seconds.running == 20);
  CHECK(first.seconds.detect == 5);
  CHECK(first.seconds.stop == 1);
  const RoundRecord& second = ledger.rounds()[1];
  CHECK(second.came == Names{"c"});
  CHECK(second.went == Names{"a"});
  CHECK(second.seconds.spawn == 1);
  CHECK(second.seconds.running == 0);
  CHECK(ledger.total().running + ledger.total().lost() == 33);
  CHECK(ledger.ettr() == 20.0 / 33);
  CHECK(ledger.summary() ==
        "2 rounds; workers ran 20.0 s of 33.0 s (60.6 %); lost: 5.00 s noticing, 2.00 s stopping, "
        "4.00 s waiting for nodes, 2.00 s starting workers");
}

TEST_CASE("Ledger: workers that wait for imports are warming") {
  Script j(2);
  j.join("1");
  j.join("2");
  j.wait(500ms);
  j.says("1", WorkersRunning{1, 400'000, 2});
  j.wait(500ms);
  j.says("2", WorkersRunning{1, 700'000, 1, "bound to CPUs"});
  j.wait_alive(10s);
  const RoundRecord round = j.table.status().front().rounds[0];
  CHECK(round.seconds.warming == Approx(0.7));
  CHECK(round.seconds.spawn == Approx(0.3));
  CHECK(round.num_warm == 3);
  CHECK(round.cold == "bound to CPUs");
}

TEST_CASE("Ledger: an end can't have come before the phase began") {
  const Clock::time_point begin{1h};
  Ledger ledger(begin);
  ledger.started(record(1), {}, begin);
  ledger.running(begin + 1s);
  ledger.over("lost", 5s, begin + 2s);
  CHECK(ledger.rounds()[0].seconds.running == 0);
  CHECK(ledger.rounds()[0].seconds.detect == 1);
}

TEST_CASE("Ledger: a crash loop's delay is no waiting for nodes") {
  const Clock::time_point begin{1h};
  Ledger ledger(begin);
  ledger.started(record(1), {"a"}, begin);
  ledger.over("failed", 0s, begin + 1s);
  ledger.stopped(begin + 2s, begin + 6s);
  CHECK(ledger.total_until(begin + 5s).delay == 3);
  CHECK(ledger.total_until(begin + 8s).delay == 4);
  CHECK(ledger.total_until(begin + 8s).rendezvous == 2);  // one node came later than that
  ledger.started(record(2), {"a"}, begin + 9s);
  CHECK(ledger.rounds()[0].seconds.delay == 4);
  CHECK(ledger.rounds()[1].seconds.rendezvous == 3);
  CHECK(ledger.total_until(begin + 9s).delay == 4);
  ledger.over("failed", 0s, begin + 9s);
  CHECK_THAT(ledger.summary(),
             Contains("3.00 s waiting for nodes") && Contains("4.00 s in delays of a crash loop"));
  ledger.stopped(begin + 9s, begin + 60s);
  ledger.started(record(3), {"a"}, begin + 10s);  // all nodes have come anew
  CHECK(ledger.total().delay == 5);
}

TEST_CASE("Ledger: old rounds are forgotten, their seconds are not") {
  const Clock::time_point begin{1h};
  Ledger ledger(begin);
  for (std::uint64_t i = 1; i <= Ledger::kKept + 5; ++i) {
    const auto at = begin + std::chrono::seconds(i);
    ledger.started(record(i), {}, at);
    ledger.running(at);
    ledger.over("failed", 0s, at);
    ledger.stopped(at);
  }
  CHECK(ledger.rounds().size() == Ledger::kKept);
  CHECK(ledger.rounds().front().round == 6);
  CHECK(ledger.total().rendezvous == Ledger::kKept + 5);
}

TEST_CASE(
    "Ledger: time without workers is not running time, though the rendezvous noticed it late") {
  Script j(2);
  j.timeouts.replacement = 60s;
  j.join("1");
  j.join("2");
  for (const char* name : {"1", "2"}) j.says(name, WorkersRunning{1});
  j.now += 9s;  // all agents have stopped their workers after 5 s
  for (const char* name : {"1", "2"}) {
    j.closes(name);
    j.join(name);
    WorkersStopped stopped{1, 1001};
    const auto gone_at = (j.now - 4s).time_since_epoch();
    stopped.gone_at_us = std::chrono::duration_cast<std::chrono::microseconds>(gone_at).count();
    j.says(name, stopped);
  }
  REQUIRE(j.round("1") == 2);
  const RoundRecord first = j.table.status().front().rounds[0];
  CHECK(first.seconds.running == Approx(5));
  CHECK(first.seconds.detect == Approx(4));
}

TEST_CASE("Ledger: the machine keeps it, and the end of the job says it") {
  Script j(2, 1);
  j.settings.spares = 1;
  j.join("1");
  j.join("2");
  j.join("3");
  j.says("1", WorkersRunning{1});
  j.wait(500ms);
  j.says("2", WorkersRunning{1});
  j.wait_alive(10s);
  j.closes("2");
  j.wait(150ms);
  j.wait(250ms);
  j.says("1", WorkersStopped{1, 1001});
  REQUIRE(j.round("3") == 2);

  const JobStatus status = j.table.status().front();
  REQUIRE(status.rounds.size() == 2);
  // Training took 10 of 10.9 s, and then the second round goes on.
  CHECK(status.ettr_at(j.now) == Approx(10 / 10.9));
  CHECK(status.ettr_at(j.now + 10s) == Approx(10 / 20.9));  // the round is starting
  const RoundRecord& first = status.rounds[0];
  CHECK(first.num_nodes == 2);
  CHECK(first.seconds.spawn == Approx(0.5));
  CHECK(first.seconds.running == Approx(10));
  CHECK(first.seconds.detect == Approx(0.15));
  CHECK(first.seconds.stop == Approx(0.25));
  CHECK_THAT(first.cause, Contains("node 1 (2, ") && Contains("was lost"));
  CHECK(status.rounds[1].num_spares == 0);
  CHECK(status.rounds[1].went.size() == 1);

  j.says("1", WorkersRunning{2});
  j.says("3", WorkersRunning{2});
  j.says("1", WorkersSucceeded{2});
  j.says("3", WorkersSucceeded{2});
  CHECK_THAT(j.got<JobEnd>("1").summary, Contains("2 rounds; workers ran 10.0 s of "));
}

TEST_CASE("Ledger: its JSON has the last rounds that fit") {
  const Clock::time_point begin{1h};
  Ledger ledger(begin);
  const auto parsed = [&](std::size_t max_bytes) {
    const std::string text = ledger_text(ledger, max_bytes);
    CHECK(text.size() <= max_bytes);
    return boost::json::parse(text).as_object();
  };
  auto out = parsed(kMaxLedgerBytes);
  CHECK(out.at("ettr").is_null());
  CHECK(out.at("rounds").as_array().empty());
  for (int i = 1; i <= 3; ++i) {
    ledger.started(record(i), {"a"}, begin + i * 10s);
    ledger.running(begin + i * 10s);
    ledger.over("failed " + std::string(400, '"'), 0s, begin + i * 10s + 5s);
    ledger.stopped(begin + i * 10s + 6s);
  }
  out = parsed(kMaxLedgerBytes);
  CHECK(out.at("ettr").as_double() == Approx(*ledger.ettr()));
  CHECK(out.at("seconds").at("running").as_double() == Approx(15));
  REQUIRE(out.at("rounds").as_array().size() == 3);
  CHECK(out.at("rounds").at(2).at("round") == 3);
  CHECK(out.at("rounds").at(2).at("seconds").at("stop").as_double() == Approx(1));
  out = parsed(3000);
  REQUIRE(out.at("rounds").as_array().size() == 2);
  CHECK(out.at("rounds").at(0).at("round") == 2);
  CHECK(parsed(1024).at("rounds").as_array().empty());
}

TEST_CASE("Ledger: it goes to node rank 0 alone at the end of the job, also after a restart") {
  Script j(2, 1, journalled());
  j.join("1");
  j.join("2");
  for (const char* name : {"1", "2"}) j.says(name, WorkersRunning{1});
  j.fails("2", 1, 3);
  CHECK_FALSE(j.got<StopRound>("1").last);
  for (const char* name : {"1", "2"}) j.says(name, WorkersStopped{1, 1001});
  REQUIRE(j.round("1") == 2);
  for (const char* name : {"1", "2"}) j.says(name, WorkersRunning{2});
  j.fails("2", 2, 3);
  CHECK(j.got<StopRound>("1").last);  // no restart is left
  j.says("2", WorkersStopped{2, 1002});
  j.closes("1");  // it stops its workers, and comes back for the end
  j.keep();
  const auto after = j.restarted();
  const bool is_first = j.got<StartRound>("1").node_rank == 0;
  for (const char* name : {"1", "2"}) after->join(name);
  after->says("1", WorkersStopped{2, 1002});
  for (const char* name : {"1", "2"}) {
    const auto* end = after->last<JobEnd>(name);
    REQUIRE(end != nullptr);
    CHECK(end->exit_code == 3);
    CHECK(end->ledger.empty() == ((name == std::string("1")) != is_first));
    if (end->ledger.empty()) continue;
    const auto rounds = boost::json::parse(end->ledger).at("rounds").as_array();
    REQUIRE(rounds.size() == 2);
    CHECK_THAT(std::string(rounds[0].at("cause").as_string()), Contains("exit code 3"));
  }
}

TEST_CASE("Ledger: the time until the first step, and the steps that are done again, are lost") {
  const Clock::time_point begin{1h};
  Ledger ledger(begin);
  ledger.started(record(1), {"a"}, begin + 1s);
  ledger.running(begin + 2s);
  ledger.first_step(1, 2s, begin + 5s);
  ledger.over("failed", 0s, begin + 105s);  // 100 steps of 1 s after the first one
  ledger.last_step(100);
  ledger.last_step(101);  // the step of another node
  ledger.stopped(begin + 105s);
  ledger.started(record(2), {"a"}, begin + 105s);  // this round fails before it has done a step
  ledger.running(begin + 105s);
  ledger.over("failed", 0s, begin + 107s);
  ledger.stopped(begin + 107s);
  ledger.started(record(3), {"a"}, begin + 107s);
  ledger.running(begin + 107s);
  ledger.first_step(82, 1h, begin + 108s);  // it goes on from the checkpoint of step 81
  const RoundRecord& first = ledger.rounds()[0];
  CHECK(first.seconds.communicators == 2);
  CHECK(first.seconds.first_step == 1);
  CHECK(first.first_step == 1);
  CHECK(first.last_step == 101);
  CHECK(first.steps_redone == 20);
  CHECK(first.seconds.redone == Approx(20));
  CHECK(first.seconds.running == Approx(80));
  CHECK(ledger.rounds()[1].seconds.first_step == 2);
  CHECK(ledger.rounds()[1].seconds.running == 0);
  CHECK(ledger.rounds()[2].first_step == 82);
  CHECK(ledger.total().running == Approx(80));
  CHECK(ledger.total().running + ledger.total().lost() == Approx(108));
  CHECK(ledger.rounds()[2].seconds.communicators == 1);  // no more time than there was
  CHECK_THAT(ledger.summary(), Contains("3.00 s making communicators") &&
                                   Contains("3.00 s until the first step") &&
                                   Contains("20.0 s in steps that were done again"));
}

TEST_CASE("Ledger: communicators take as long as the slowest node says") {
  Script j(2);
  for (const char* name : {"1", "2"}) j.join(name);
  for (const char* name : {"1", "2"}) j.says(name, WorkersRunning{1});
  j.now += 9s;
  j.says("1", FirstStep{1, 1, 2'000'000});
  j.says("2", FirstStep{1, 1, 500'000});
  const PhaseSeconds seconds = j.table.status().front().rounds[0].seconds;
  CHECK(seconds.communicators == 2);
  CHECK(seconds.first_step == 7);
}

TEST_CASE("Ledger: steps that are done again twice are lost there once") {
  const Clock::time_point begin{1h};
  Ledger ledger(begin);
  ledger.started(record(1), {"a"}, begin);
  ledger.running(begin);
  ledger.first_step(1, 0s, begin);
  ledger.over("failed", 0s, begin + 100s);
  ledger.last_step(101);
  ledger.stopped(begin + 100s);
  // The nodes of these rounds were lost, and told no last step.
  for (int round = 2; round <= 4; ++round) {
    ledger.started(record(round), {"a"}, begin + 100s);
    ledger.running(begin + 100s);
    ledger.first_step(round == 4 ? 72 : 82, 0s, begin + 100s);
    ledger.over("lost", 0s, begin + 100s);
    ledger.stopped(begin + 100s);
    CHECK(ledger.rounds()[0].seconds.redone == Approx(round == 4 ? 30 : 20));
  }
  CHECK(ledger.rounds()[0].steps_redone == 30);
  CHECK(ledger.total().running + ledger.total().lost() == Approx(100));
}

TEST_CASE(
    "Ledger: no more is lost than the round that is done again ran, without numbers nothing") {
  const Clock::time_point begin{1h};
  const auto seconds_redone = [&](std::uint64_t first, std::uint64_t last, std::uint64_t again) {
    Ledger ledger(begin);
    ledger.started(record(1), {"a"}, begin);
    ledger.running(begin);
    if (first > 0) ledger.first_step(first, 0s, begin);
    ledger.over("failed", 0s, begin + 10s);
    ledger.last_step(last);
    ledger.stopped(begin + 10s);
    ledger.started(record(2), {"a"}, begin + 10s);
    ledger.running(begin + 10s);
    ledger.first_step(again, 0s, begin + 10s);
    return ledger.total().redone;
  };
  CHECK(seconds_redone(50, 60, 1) == Approx(10));  // it goes on from an older checkpoint
  CHECK(seconds_redone(50, 60, 61) == 0);          // nothing was lost
  CHECK(seconds_redone(50, 60, 70) == 0);
  CHECK(seconds_redone(50, 60, 0) == 0);
  CHECK(seconds_redone(50, 0, 51) == 0);
  CHECK(seconds_redone(0, 60, 51) == 0);
  CHECK(seconds_redone(60, 60, 60) == 0);  // the only step that it finished was its first
}

}  // namespace
}  // namespace ddprun::membership
