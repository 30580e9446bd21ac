// SPDX-License-Identifier: Apache-2.0
// Every cell of the table of states and events. A job in that phase is given the event, and its
// twin is not. The expected cell says whether they differ then, and how. The dispatch reads the
// table itself, so this test has its own copy.
#include "rendezvous/membership/job_events.h"

#include <algorithm>
#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/text.h"
#include "rendezvous/messages/codec.h"
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using testing::Script;

constexpr std::array kPhases = {JobPhase::kForming, JobPhase::kRunning, JobPhase::kStopping,
                                JobPhase::kEnded};
constexpr std::uint64_t kOtherRound = 99;

// A letter for each Reaction, in its order; a text for each event, of which each phase has a
// letter.
constexpr std::string_view kLetters = "+-axfn";
constexpr auto kExpected = std::to_array<std::string_view>({
    "xxxx",  // kJoin
    "---a",  // kAck
    "-+-a",  // kWorkersRunning
    "-++a",  // kWorkerFailed
    "-+-a",  // kWorkersSucceeded
    "-+-a",  // kFirstStep
    "-++a",  // kWorkersStopped
    "-+-a",  // kWorkerRequest
    "-+-a",  // kWorkersLeft
    "+++a",  // kPreempted
    "+++a",  // kLeave
    "-+-a",  // kRecordsWanted
    "+++a",  // kCutOff
    "-+-a",  // kStalled
    "-+-a",  // kInspection
    "+++a",  // kStepTimes
    "+++a",  // kTail
    "+++n",  // kNewcomer
    "++++",  // kComesBack
    "++++",  // kHeard
    "++++",  // kClosed
    "+++f",  // kStoreLost
    "+++f",  // kSilent
    "+++f",  // kStaysAway
    "+++-",  // kTailAsked
    "---+",  // kLingerOver
    "++++",  // kPresenceCheck
    "-+--",  // kStartOver
    "-+--",  // kBarrierOver
    "-+--",  // kNoticeOver
    "--+-",  // kStopOver
    "+---",  // kLastCallOver
    "+-+-",  // kFenceOver
    "+-+-",  // kBackoffOver
    "+---",  // kJoinTimeOver
    "-+--",  // kJoinRestartDue
    "+---",  // kWaitingDue
    "-+--",  // kInquiryDue
});
static_assert(kExpected.size() == kNumJobEvents);

Reaction expected(JobEvent event, JobPhase phase) {
  const std::string_view cells = kExpected.at(static_cast<std::size_t>(event));
  return static_cast<Reaction>(kLetters.find(cells.at(static_cast<std::size_t>(phase))));
}

MachineOptions options() {
  MachineOptions options = testing::journalled();
  options.end_linger = 60s;
  return options;
}

// Nodes "a" and "b" in round 1, in which the workers of "a" are still being started. Forming: that
// round is over, and "b" is lost.
struct Scene : Script {
  explicit Scene(JobPhase phase) : Script(2, 3, options()) {
    timeouts.replacement = 60s;
    join("a");
    join("b");
    says("b", WorkersRunning{1});
    if (phase == JobPhase::kForming) {
      closes("b");
      wait(200ms);
      says("a", WorkersStopped{1, 1001});
    }
    if (phase == JobPhase::kStopping) fails("b", 1, 3);
    before_the_end = agents["a"].channel;
    if (phase == JobPhase::kEnded) says("b", Leave{"received SIGTERM", 143});
    wait_alive(1s);
    REQUIRE(table.status().front().phase == to_string(phase));
  }

  Channel<AgentMessage> before_the_end;  // of "a"
};

boost::json::object state_row(Script& script) {
  script.keep();
  const auto row = script.rows.find("jobs/1/state");
  if (row == script.rows.end()) return {};
  return boost::json::parse(row->second).as_object();
}

// All that can be seen of a job.
std::string seen(Script& script) {
  script.keep();
  std::string text;
  for (const auto& [key, row] : script.rows) text += concat(key, " ", row, "\n");
  for (const JobStatus& job : script.table.status()) {
    text += concat(job.run_id, " ", job.phase, job.training ? " trains\n" : "\n");
    for (const NodeStatus& node : job.nodes) {
      text += concat(node.host, node.connected ? " is connected" : " is away",
                     node.monitor ? ", monitored\n" : "\n");
    }
  }
  for (const auto& [name, agent] : script.agents) {
    text += concat(name, agent.closed ? " is closed\n" : " is open\n");
    for (const auto& message : agent.received) text += encode(RendezvousEnvelope{0, 0, message});
  }
  for (const std::string& line : script.logs) text += line + "\n";
  return text + concat(script.starts.size(), " starts, ", script.round_ends.size(), " ends, ",
                       script.tails.size(), " tails");
}

bool has_node(const Script& script, const std::string& host) {
  for (const JobStatus& job : script.table.status()) {
    for (const NodeStatus& node : job.nodes) {
      if (node.host == host) return true;
    }
  }
  return false;
}

bool is_logged(const Script& script, const std::string& part) {
  return std::any_of(script.logs.begin(), script.logs.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

// Each kind of message, as "a" says it.
AgentMessage message_of(JobEvent event, std::uint64_t round) {
  switch (event) {
    case JobEvent::kJoin:
      return Join{};
    case JobEvent::kWorkersRunning:
      return WorkersRunning{round};
    case JobEvent::kWorkerFailed:
      return WorkerFailed{round, {}};
    case JobEvent::kWorkersSucceeded:
      return WorkersSucceeded{round};
    case JobEvent::kFirstStep:
      return FirstStep{round, 5};
    case JobEvent::kWorkersStopped:
      return WorkersStopped{round, 1001};
    case JobEvent::kWorkerRequest:
      return WorkerRequest{round, {}, 0, {}};
    case JobEvent::kWorkersLeft:
      return WorkersLeft{round};
    case JobEvent::kPreempted:
      return Preempted{.reason = "got SIGUSR1"};
    case JobEvent::kLeave:
      return Leave{"received SIGTERM", 143};
    case JobEvent::kRecordsWanted:
      return RecordsWanted{round};
    case JobEvent::kCutOff:
      return CutOff{};
    case JobEvent::kStalled:
      return Stalled{round, {}};
    case JobEvent::kInspection:
      return Inspection{round, 1, {}};
    case JobEvent::kStepTimes:
      return StepTimes{round, {}, TrainingStatus{}, NodeReport{}};
    case JobEvent::kTail:
      return Tail{7, {"a line"}, {}};
    default:
      return Ack{};
  }
}

// `give` is for a job, `instead` for its twin. Both are prepared first.
struct Trial {
  std::function<void(Script&)> give;
  std::function<void(Script&)> prepare = [](Script&) {};
  std::function<void(Script&)> instead = [](Script&) {};
};

Trial message_trial(JobEvent event, std::uint64_t round) {
  Trial trial;
  const AgentMessage message = message_of(event, round);
  if (may_be_unnumbered(message)) {
    trial.give = [message](Script& j) { j.mentions("a", message); };
    trial.instead = [](Script& j) { j.acks("a"); };
  } else {
    trial.give = [message](Script& j) { j.says("a", message); };
    trial.instead = [](Script& j) { j.says("a", WorkersRunning{kOtherRound}); };
  }
  if (event == JobEvent::kInspection) {
    trial.prepare = [](Script& j) {
      if (j.table.status().front().phase != "running") return;
      j.mentions("b", Stalled{1, {}});
      j.mentions("b", Inspection{1, 1, {}});
    };
  }
  return trial;
}

Trial trial_of(JobEvent event) {
  const auto refuse_one = [](Script& j) {
    Join other = j.make_join("x");
    ++other.settings.max_restarts;
    j.join("x", other);
  };
  switch (event) {
    case JobEvent::kNewcomer:
      return {[](Script& j) { j.join("c"); }};
    case JobEvent::kComesBack:
      return {[](Script& j) { j.join("a"); }};
    case JobEvent::kHeard:
      return {[](Script& j) {
                j.hears("a");
                j.wait(2s);
              },
              [](Script& j) { j.wait(4s); }, [](Script& j) { j.wait(2s); }};
    case JobEvent::kClosed:
      return {[](Script& j) { j.closes("a"); }};
    case JobEvent::kStoreLost:
      return {[](Script& j) { j.loses_store("a", "it lost its end"); }};
    case JobEvent::kSilent:
      return {[](Script& j) { j.wait(5200ms); }};
    case JobEvent::kStaysAway:
    case JobEvent::kPresenceCheck:
      return {[](Script& j) { j.wait(1100ms); }, [](Script& j) { j.closes("a"); }};
    case JobEvent::kTailAsked:
      return {[](Script& j) { j.asks_for_tail(0, 7); }};
    case JobEvent::kWaitingDue:
      return {[](Script& j) { j.wait(1100ms); }, refuse_one};
    case JobEvent::kInquiryDue:
      return {[](Script& j) { j.wait(3100ms); },
              [](Script& j) {
                j.mentions("a", Stalled{1, {}});
              }};
    default:
      return event <= JobEvent::kTail ? message_trial(event, 1) : Trial{};
  }
}

void check_cell(JobEvent event, JobPhase phase, const Trial& trial) {
  Scene job(phase), twin(phase);
  trial.prepare(job);
  trial.prepare(twin);
  trial.give(job);
  trial.instead(twin);
  const bool is_lost = is_logged(job, "(a, 10.0.0.a) was lost");
  switch (expected(event, phase)) {
    case Reaction::kHandled:
      CHECK(seen(job) != seen(twin));
      CHECK(job.table.num_jobs() <= 1);
      if (event == JobEvent::kSilent || event == JobEvent::kStaysAway) CHECK(is_lost);
      return;
    case Reaction::kIgnored:
      CHECK(seen(job) == seen(twin));
      return;
    case Reaction::kAcknowledges:
      CHECK(seen(job) == seen(twin));
      CHECK_FALSE(has_node(job, "a"));
      CHECK(has_node(job, "b"));
      return;
    case Reaction::kBreaksProtocol:
      CHECK(job.agents["a"].closed);
      CHECK(is_logged(job, "broke the protocol"));
      return;
    case Reaction::kForgotten:
      CHECK_FALSE(has_node(job, "a"));
      CHECK_FALSE(is_lost);
      return;
    case Reaction::kElsewhere:
      CHECK(job.table.num_jobs() == 2);
      return;
  }
  FAIL("an unknown reaction");
}

// Deadlines are set in the journal, so that each can be tried in each phase.
std::string deadline_name(JobEvent event) {
  switch (event) {
    case JobEvent::kLingerOver:
      return "linger";
    case JobEvent::kStartOver:
      return "start";
    case JobEvent::kBarrierOver:
      return "barrier";
    case JobEvent::kNoticeOver:
      return "preempt";
    case JobEvent::kStopOver:
      return "stop";
    case JobEvent::kLastCallOver:
      return "last_call";
    case JobEvent::kFenceOver:
      return "fenced";
    case JobEvent::kBackoffOver:
      return "backoff";
    case JobEvent::kJoinTimeOver:
      return "join";
    case JobEvent::kJoinRestartDue:
      return "join_restart";
    default:
      return {};
  }
}

// The job goes on after a restart. Its agents are back. If it has ended, "a" alone is, and doesn't
// confirm that it was told.
std::unique_ptr<Script> restarted(Scene& scene, JobPhase phase) {
  auto j = scene.restarted(options());
  if (phase == JobPhase::kEnded) j->agents["a"].channel = scene.before_the_end;
  j->join("a");
  if (phase == JobPhase::kRunning || phase == JobPhase::kStopping) j->join("b");
  return j;
}

void check_deadline(JobEvent event, JobPhase phase) {
  const std::string name = deadline_name(event);
  Scene scene(phase);
  const auto at = (scene.now + 12s).time_since_epoch().count();
  boost::json::object row = state_row(scene);
  const auto twin = restarted(scene, phase);
  row.at("deadlines").as_object()[name] = at;
  scene.rows.at("jobs/1/state") = boost::json::serialize(row);
  const auto job = restarted(scene, phase);
  // It is forgotten in both, so that only its effects are compared.
  const auto left = [&](Script& script) {
    boost::json::object state = state_row(script);
    if (state.empty()) return boost::json::value();
    const boost::json::value its = std::exchange(state.at("deadlines").as_object()[name], nullptr);
    script.rows.at("jobs/1/state") = boost::json::serialize(state);
    return its;
  };
  job->wait_alive(13s);
  twin->wait_alive(13s);
  const bool is_as_it_was = left(*job) == boost::json::value(at);
  left(*twin);
  const bool is_as_twin = seen(*job) == seen(*twin);
  if (expected(event, phase) == Reaction::kIgnored) {
    CHECK(is_as_it_was);
    CHECK(is_as_twin);
  } else {
    CHECK(expected(event, phase) == Reaction::kHandled);
    CHECK_FALSE((is_as_it_was && is_as_twin));
  }
}

TEST_CASE("States and events: each event does in each phase what the table says") {
  for (std::size_t i = 0; i < kNumJobEvents; ++i) {
    const auto event = static_cast<JobEvent>(i);
    for (const JobPhase phase : kPhases) {
      INFO("event " << i << " in phase " << to_string(phase));
      CHECK(reaction_to(event, phase) == expected(event, phase));
      if (!deadline_name(event).empty()) {
        check_deadline(event, phase);
      } else {
        const Trial trial = trial_of(event);
        REQUIRE(trial.give);
        check_cell(event, phase, trial);
      }
    }
  }
}

TEST_CASE(
    "States and events: a message about another round changes nothing, if the round matters") {
  for (std::size_t i = 0; i <= static_cast<std::size_t>(JobEvent::kTail); ++i) {
    const auto event = static_cast<JobEvent>(i);
    CHECK(event_of(message_of(event, 1)) == event);
    if (row_of(event).scope == Scope::kAny) continue;
    for (const JobPhase phase : kPhases) {
      INFO("event " << i << " in phase " << to_string(phase));
      const Trial trial = message_trial(event, kOtherRound);
      Scene job(phase), twin(phase);
      trial.give(job);
      trial.instead(twin);
      CHECK(seen(job) == seen(twin));
    }
  }
}

}  // namespace
}  // namespace ddprun::membership
