// SPDX-License-Identifier: Apache-2.0
// The agent's machine against a rendezvous, workers and a user that do anything in any order.
// DDPRUN_SOAK=1 runs ten times as many.
#include <optional>
#include <string>
#include <vector>

#include "agent/link/agent_machine.h"
#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/worlds.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;

class RandomNode {
 public:
  explicit RandomNode(std::uint64_t seed)
      : state_(seed * 0x9E3779B97F4A7C15ULL + 1),
        machine_(options(), [this](const std::string&, std::uint16_t) -> std::uint16_t {
          if (random(64) == 0) throw Error(ErrorCode::kUnavailable, "taken");
          return 4000;
        }) {}

  // Returns the broken invariant; empty: every invariant held.
  std::string run() {
    step(agent_event::Start{});
    for (int i = 0; i < 60 && violation_.empty() && !machine_.exited(); ++i) {
      random_event();
      if (open_ && !machine_.exited() && random(8) == 0) want_tail();
      if (!wanted_.empty() && random(8) == 0) answer_tail();
    }
    drain();
    return violation_;
  }
  bool ran() const { return num_spawns_ > 1; }

 private:
  std::uint64_t random(std::uint64_t below) {  // splitmix64
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return (z ^ (z >> 31)) % below;
  }
  AgentOptions options() {
    AgentOptions options;
    options.endpoints = {Endpoint{.host = "head", .port = 29500}};
    options.join.run_id = options.join.instance = "job";
    options.join.settings.max_nodes = 2;
    options.prewarm = random(2) == 0;
    if (random(4) == 0) options.join.settings.rdzv_backend = kStaticBackend;
    return options;
  }

  void random_event() {
    const std::uint64_t round = random(5) == 0 ? random(4) : round_;
    switch (random(15)) {
      case 0:
      case 1:
        return open_ ? hear() : connect();
      case 2:
        if (open_) return down(random(2) == 0);
        return connect();
      case 3:
        now_ += std::chrono::milliseconds(random(8'000));
        return tick();
      case 4:
        if (live_) return step(agent_event::WorkersRunning{round});
        return hear();
      case 5:
        if (live_) return step(agent_event::WorkerFailed{round, {}, std::nullopt});
        return hear();
      case 6:
        if (live_) return step(agent_event::WorkersSucceeded{round});
        return hear();
      case 7:
        if (random(16) == 0) return step(agent_event::Abandoned{"nobody is there", 15});
        if (random(8) == 0) return step(agent_event::Signal{15});
        return hear();
      case 8:
        if (live_) return step(agent_event::WorkersFenced{round});
        return hear();
      case 9:
        if (open_)
          return step(agent_event::LinkAnswered{now_ - std::chrono::milliseconds(random(3'000))});
        return connect();
      case 10:
        return stopping_ ? gone() : hear();
      default:
        return hear();
    }
  }

  void connect() {
    if (!connecting_) return hear();
    connecting_ = false;
    open_ = random(5) > 0;
    if (open_) {
      step(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    } else {
      step(agent_event::LinkFailed{"no answer"});
    }
  }
  void down(bool silence) {
    open_ = false;
    step(agent_event::LinkDown{silence, "gone"});
  }
  void gone() {
    live_ = stopping_ = false;
    step(agent_event::WorkersGone{round_, 0});
  }
  void hear() {
    if (!open_) return tick();
    const std::uint64_t round = random(6) == 0 ? random(round_ + 2) : round_;
    RendezvousEnvelope envelope;
    envelope.seq = ++pushed_;
    switch (random(12)) {
      case 0:
        envelope.message = StopRound{round, "why"};
        break;
      case 1:
        envelope.message = Preempt{round, "why", 1s};
        break;
      case 2:
        envelope.message = Inspect{round, 1};
        if (random(2) == 0) envelope.message = Record{round};
        break;
      case 3:
        if (random(4) == 0) envelope.message = JobEnd{0, "", {}, 1};
        break;
      case 4:
        envelope = {0, 0, Refused{"no", 75, random(2) == 0}};
        if (random(3) > 0) envelope.message = Waiting{1, 2, "", true};
        --pushed_;
        break;
      case 5:
      case 6:
      case 7: {
        StartRound start;
        start.round = random(5) == 0 ? round : round_ + 1;
        start.serve_store = random(2) == 0;
        envelope.message = start;
        break;
      }
      default: {
        Welcome welcome;
        welcome.session = "s";
        welcome.embedded = random(4) == 0;
        envelope = {0, 0, welcome};
        --pushed_;
      }
    }
    if (random(100) == 0) envelope.seq += 2;  // breaks the protocol
    step(agent_event::LinkMessage{envelope});
  }
  // The question may name any round. The machine must find that out at any time.
  void want_tail() {
    const TailWanted wanted{random(round_ + 2), ++last_request_, 0};
    step(agent_event::LinkMessage{{0, 0, wanted}});
  }
  // Answers come in any order, some of them twice. The machine sends an answer once at most, and
  // waits for none.
  void answer_tail() {
    const std::size_t at = random(wanted_.size());
    const Tail tail{wanted_[at], {"a line"}, ""};
    if (random(4) > 0) wanted_.erase(wanted_.begin() + static_cast<std::ptrdiff_t>(at));
    const auto deadline = machine_.next_deadline();
    answers_ = tail.request;
    step(agent_event::TailRead{tail});
    answers_.reset();
    if (machine_.next_deadline() != deadline) violated("it waits for something else after a tail");
  }
  void tick() {
    const auto due = machine_.next_deadline();
    if (!due) return;
    now_ = std::max(now_, *due);
    step(agent_event::Timer{});
  }

  // From here on everything that was begun ends, and the rendezvous is silent. The machine must
  // come to an end.
  void drain() {
    for (int i = 0; i < 200 && violation_.empty() && !machine_.exited(); ++i) {
      if (stopping_) {
        gone();
      } else if (open_) {
        down(true);
      } else if (connecting_) {
        connecting_ = false;
        now_ += 60s;
        step(agent_event::LinkFailed{"no answer"});
      } else {
        tick();
      }
    }
    if (violation_.empty() && !machine_.exited()) violation_ = "it never exits";
  }

  void step(const AgentEvent& event) {
    if (!violation_.empty()) return;
    if (machine_.exited()) {
      if (!machine_.step(event, now_).empty()) violation_ = "it acts after its exit";
      return;
    }
    for (const AgentAction& action : machine_.step(event, now_)) perform(action);
    const bool waits = connecting_ || open_ || stopping_ || machine_.next_deadline();
    if (!waits && !machine_.exited()) violated("it waits for nothing");
    if (stopping_ && !machine_.next_deadline())
      violated("it waits for its workers without a deadline");
    const auto deadline = machine_.next_deadline();
    if (variants::holds_alternative<agent_event::Timer>(event) && deadline && *deadline <= now_) {
      violated("its timer is due at once again");
    }
  }
  void perform(const AgentAction& action) {
    using namespace agent_action;
    if (answers_) return check_answer(action);
    if (const auto* wanted = variants::get_if<ReadTail>(&action))
      wanted_.push_back(wanted->request);
    if (variants::holds_alternative<Connect>(action)) {
      if (open_ || connecting_) violated("it connects twice");
      connecting_ = true;
    } else if (variants::holds_alternative<CloseLink>(action)) {
      open_ = connecting_ = false;
    } else if (variants::holds_alternative<Send>(action)) {
      if (!open_) violated("it sends without a connection");
    } else if (const auto* start = variants::get_if<Spawn>(&action)) {
      if (live_ && !given_up_) violated("it starts workers while others live");
      if (start->round.round <= round_) violated("it starts a round again");
      round_ = start->round.round;
      live_ = true;
      given_up_ = stopping_ = false;
      ++num_spawns_;
    } else if (variants::holds_alternative<StopWorkers>(action)) {
      if (!live_) violated("it stops no workers");
      stopping_ = true;
    } else if (const auto* tell = variants::get_if<Tell>(&action)) {
      if (tell->text.find("could not be stopped") != std::string::npos) {
        given_up_ = true;
        live_ = stopping_ = false;
      }
    } else if (variants::holds_alternative<Exit>(action)) {
      if (live_) violated("it exits while workers live");
    }
  }
  void check_answer(const AgentAction& action) {
    const auto* send = variants::get_if<agent_action::Send>(&action);
    const auto* tail = send ? variants::get_if<Tail>(&send->envelope.message) : nullptr;
    if (tail == nullptr || tail->request != *answers_ || send->envelope.seq != 0 || !open_) {
      violated("a tail that was read has an effect");
    }
  }
  void violated(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  std::uint64_t state_;
  AgentMachine machine_;
  Clock::time_point now_{1h};
  bool connecting_ = false, open_ = false;
  bool live_ = false, stopping_ = false, given_up_ = false;
  std::uint64_t round_ = 0, pushed_ = 0, last_request_ = 0;
  std::vector<std::uint64_t> wanted_;     // questions about tails that it was asked to read
  std::optional<std::uint64_t> answers_;  // the question that it is being answered now
  int num_spawns_ = 0;
  std::string violation_;
};

TEST_CASE("AgentMachine: random events break no invariant", "[random]") {
  const std::uint64_t num_nodes = test::num_worlds(100'000);
  std::uint64_t num_ran = 0;
  for (std::uint64_t seed = 1; seed <= num_nodes; ++seed) {
    RandomNode node(seed);
    const std::string violation = node.run();
    if (!violation.empty()) FAIL("seed " << seed << ": " << violation);
    num_ran += node.ran() ? 1 : 0;
  }
  if (test::kIsSanitized) return;   // so few worlds say nothing of the following
  CHECK(num_ran > num_nodes / 20);  // the worlds are not trivial
}

}  // namespace
}  // namespace ddprun::membership
