// SPDX-License-Identifier: Apache-2.0
// Late messages between an agent's own. The other side sees one sequence without gaps, the agent
// its own numbers.
#include "tests/rendezvous/membership/world/late_messages.h"

#include "rendezvous/messages/messages.h"
#include "tests/support/catch.h"

namespace ddprun::membership::testing {
namespace {

struct Session {
  void say() {  // a message of the agent
    AgentEnvelope envelope = agent.number(WorkersRunning{1});
    send(envelope);
  }
  void send(AgentEnvelope envelope) {
    for (const auto& again : numbers.out(envelope)) arrive(again);
    arrive(envelope);
  }
  void late() { arrive(numbers.put_in(WorkersStopped{1, 1, 0})); }
  void arrive(const AgentEnvelope& envelope) {
    if (cut) return;
    const Arrival arrival = rendezvous.receive(envelope.seq, envelope.ack);
    REQUIRE(arrival != Arrival::kGap);
    if (arrival == Arrival::kNew && envelope.seq > 0) ++num_taken;
  }
  void answer() {
    RendezvousEnvelope envelope = rendezvous.plain(Waiting{});
    numbers.in(envelope);
    REQUIRE(agent.receive(0, envelope.ack) == Arrival::kNew);
  }
  void come_back() {
    cut = false;
    RendezvousEnvelope welcome = rendezvous.plain(Welcome{});
    numbers.in(welcome);
    numbers.welcomed();
    REQUIRE(agent.receive(0, welcome.ack) == Arrival::kNew);
    agent.resend([this](AgentEnvelope again) { send(std::move(again)); });
    for (const auto& again : numbers.rest()) arrive(again);
  }
  Channel<AgentMessage> agent;
  Channel<RendezvousMessage> rendezvous;
  WireNumbers numbers;
  bool cut = false;
  int num_taken = 0;
};

TEST_CASE(
    "WireNumbers: a message that is put in has a place of its own, and confirms nothing of the "
    "agent's") {
  Session session;
  session.say();
  session.late();
  session.late();
  session.say();
  CHECK(session.num_taken == 4);
  session.answer();
  CHECK(session.agent.all_acknowledged());
}

TEST_CASE("WireNumbers: all is sent again after a lost connection, in its order") {
  Session session;
  session.say();
  session.late();
  session.answer();
  session.cut = true;
  session.say();
  session.late();
  session.say();
  session.late();
  session.come_back();
  CHECK(session.num_taken == 6);
  session.answer();
  CHECK(session.agent.all_acknowledged());
  session.late();
  session.say();
  CHECK(session.num_taken == 8);
}

}  // namespace
}  // namespace ddprun::membership::testing
