// SPDX-License-Identifier: Apache-2.0
// Terms at the agent: the register by itself, and what AgentMachine does with claims and with
// welcomes of terms that it does not follow.
#include "rendezvous/membership/term_register.h"

#include "tests/rendezvous/membership/agent_node.h"

namespace ddprun::membership {
namespace {

using Node = AgentNode;
using ddprun::test::Contains;

TEST_CASE("TermRegister: a claim is granted once for each term that it may replace") {
  TermRegister follows;
  follows.welcomed("1");
  CHECK(follows.claim({"2", "1"}));
  CHECK_FALSE(follows.claim({"3", "1"}));  // the other one that would go on after term 1
  CHECK(follows.follows() == "2");
  CHECK(follows.claim({"2", "1"}));  // asked again
  CHECK(follows.claim({"4", "2"}));
  CHECK_FALSE(follows.claim({"2", "1"}));  // never back
  CHECK(follows.follows() == "4");
}

TEST_CASE("TermRegister: who follows none grants any claim, and takes any welcome") {
  TermRegister follows;
  CHECK(follows.allows(""));
  CHECK(follows.allows("1"));
  CHECK(follows.claim({"2", "1"}));
  CHECK(follows.allows("2"));
  CHECK_FALSE(follows.allows("1"));
  CHECK_FALSE(follows.allows(""));
}

TEST_CASE("TermRegister: a refusal is meant where it goes on from what is followed") {
  TermRegister follows;
  CHECK(follows.heeds("2", {}));
  follows.welcomed("1");
  CHECK(follows.heeds("1", {}));
  CHECK(follows.heeds("3", {"2", "1"}));
  CHECK_FALSE(follows.heeds("3", {"2"}));
  CHECK_FALSE(follows.heeds("", {}));
}

struct TermNode : Node {
  void welcome_in(const std::string& term) {
    Welcome message;
    message.session = "s";
    message.term = term;
    hear(message, false);
  }
  void run_in(const std::string& term) {
    say_join();
    welcome_in(term);
    start(1);
  }
  void refused_in(const std::string& term, std::vector<std::string> line = {}) {
    Refused refused{"it is not known", 75};
    refused.term = term;
    refused.line = std::move(line);
    hear(refused, false);
  }
  void come_to(std::uint16_t port) {
    (*this)(agent_event::LinkUp{"10.0.0.2", "10.0.0.1", {"head", port}});
  }
  void lose_link() { (*this)(agent_event::LinkDown{false, "reset"}); }
  Vote voted() {
    REQUIRE(said<Vote>() != nullptr);
    return *said<Vote>();
  }
};

TEST_CASE("AgentMachine: it grants a claim on the term that it follows, and is welcome in that") {
  TermNode node;
  node.run_in("1");
  node.lose_link();
  node.come_to(29500);
  node.actions.clear();
  node.hear(Claim{"2", "1"}, false);
  CHECK(node.voted().granted);
  CHECK(node.voted().term == "2");
  CHECK(node.voted().follows == "2");
  node.welcome_in("2");
  CHECK(node.last<agent_action::SetKeepAlive>() != nullptr);
  CHECK(node.last<agent_action::CloseLink>() == nullptr);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  node.actions.clear();
  node.hear(Claim{"3", "2"}, false);  // after the welcome nobody asks
  CHECK(node.said<Vote>() == nullptr);
}

TEST_CASE("AgentMachine: who welcomes it in a term that it does not follow is left, said once") {
  TermNode node;
  node.run_in("1");
  const std::string foreign = GENERATE("2", "");
  node(agent_event::WorkersRunning{1});
  node(agent_event::LinkMessage{{0, 1, Waiting{}}});  // confirms that
  node.lose_link();
  node.come_to(29500);
  node.actions.clear();
  node.welcome_in(foreign);  // it confirms nothing, which is no loss: it is another one
  CHECK(node.last<agent_action::CloseLink>() != nullptr);
  REQUIRE(node.last<agent_action::Connect>() != nullptr);
  CHECK(node.last<agent_action::Exit>() == nullptr);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  REQUIRE(node.last<agent_action::Tell>() != nullptr);
  CHECK_THAT(node.last<agent_action::Tell>()->text, Contains("this node follows term 1"));
  node.actions.clear();
  node.come_to(29501);
  node.welcome_in(foreign);
  CHECK(node.last<agent_action::CloseLink>() != nullptr);
  CHECK(node.last<agent_action::Tell>() == nullptr);
  node.come_to(29502);
  node.actions.clear();
  Welcome message;
  message.session = "s";
  message.term = "1";
  node(agent_event::LinkMessage{{0, 1, message}});
  CHECK(node.last<agent_action::SetKeepAlive>() != nullptr);
}

TEST_CASE("AgentMachine: the one that it denied does not get it") {
  TermNode node;
  node.run_in("1");
  node.lose_link();
  node.come_to(29500);
  node.hear(Claim{"2", "1"}, false);
  node.lose_link();
  node.come_to(29501);
  node.actions.clear();
  node.hear(Claim{"3", "1"}, false);
  CHECK_FALSE(node.voted().granted);
  CHECK(node.voted().follows == "2");
  node.welcome_in("3");
  CHECK(node.last<agent_action::CloseLink>() != nullptr);
}

TEST_CASE("AgentMachine: a claim shows that the rendezvous lives, but not for ever") {
  TermNode node;
  node.run_in("1");
  node.lose_link();
  node.pass(20s);
  node.come_to(29500);
  node.actions.clear();
  for (int i = 0; i < 4; ++i) {  // 29, 39, 49, 59 s after the loss
    node.pass(i == 0 ? 9s : 10s);
    node.hear(Claim{"2", "1"}, false);
    CHECK(node.last<agent_action::Exit>() == nullptr);
    CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  }
  node.pass(1s);  // --rendezvous-lost-timeout
  CHECK(node.last<agent_action::StopWorkers>() != nullptr);
  node(agent_event::WorkersGone{1});
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 69);
}

TEST_CASE("AgentMachine: closed while its claim waits, it tries on with its workers") {
  TermNode node;
  node.run_in("1");
  node.lose_link();
  node.come_to(29500);
  node.hear(Claim{"2", "1"}, false);
  node.actions.clear();
  node.pass(10s);
  node(agent_event::LinkAnswered{node.now});
  node.lose_link();
  REQUIRE(node.last<agent_action::Connect>() != nullptr);
  CHECK(node.last<agent_action::Connect>()->timeout == 50s);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
}

TEST_CASE("AgentMachine: who refuses it in a term that it does not follow is left, said once") {
  TermNode node;
  node.run_in("1");
  node.lose_link();
  node.come_to(29500);
  node.actions.clear();
  const std::string foreign = GENERATE("2", "");
  node.refused_in(foreign);
  CHECK(node.last<agent_action::CloseLink>() != nullptr);
  REQUIRE(node.last<agent_action::Connect>() != nullptr);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  REQUIRE(node.last<agent_action::Tell>() != nullptr);
  CHECK_THAT(node.last<agent_action::Tell>()->text, Contains("this node follows term 1"));
  node.actions.clear();
  node.come_to(29501);
  node.refused_in(foreign);
  CHECK(node.last<agent_action::Tell>() == nullptr);
  node.come_to(29502);
  node.actions.clear();
  node.welcome_in("1");
  CHECK(node.last<agent_action::SetKeepAlive>() != nullptr);
}

TEST_CASE("AgentMachine: who goes on from its term and refuses it is obeyed") {
  TermNode node;
  node.run_in("1");
  node.lose_link();
  node.come_to(29500);
  node.actions.clear();
  SECTION("its own rendezvous") { node.refused_in("1"); }
  SECTION("another one") { node.refused_in("3", {"2", "1"}); }
  REQUIRE(node.last<agent_action::StopWorkers>() != nullptr);
  CHECK(node.last<agent_action::StopWorkers>()->grace == kFenceGrace);
  node(agent_event::WorkersGone{1});
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 75);
  CHECK(node.last<agent_action::Exit>()->verdict.reason == "it is not known");
}

TEST_CASE("AgentMachine: one without a round begins anew where its rendezvous has gone for good") {
  TermNode node;
  node.say_join();
  node.welcome_in("1");
  node.lose_link();
  node.come_to(29500);
  node.actions.clear();
  SECTION("who refuses it goes on from there") { node.refused_in("2", {"1"}); }
  SECTION("it was not heard for 3 s") {
    node.refused_in("2");
    CHECK(node.last<agent_action::Tell>()->text.find("follows term 1") != std::string::npos);
    node.pass(2999ms);
    node.come_to(29500);
    node.refused_in("2");
    node.pass(1ms);
    node.come_to(29500);
    node.actions.clear();
    node.refused_in("2");
  }
  CHECK(node.last<agent_action::Exit>() == nullptr);
  REQUIRE(node.last<agent_action::Connect>() != nullptr);
  node.actions.clear();
  node.come_to(29500);
  REQUIRE(node.said<Join>() != nullptr);
  CHECK(node.said<Join>()->session.empty());
  CHECK(node.said<Join>()->instance == "i/1");  // whose votes nobody counts twice
  node.welcome_in("2");
  CHECK(node.last<agent_action::SetKeepAlive>() != nullptr);
}

TEST_CASE("AgentMachine: who follows nobody is refused as ever") {
  TermNode node;
  node.say_join();
  node.refused_in("2");
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 75);
}

TEST_CASE("AgentMachine: as a new node it follows nobody yet") {
  TermNode node;
  node.say_join();
  node.welcome_in("1");
  node.hear(Refused{"it ends", 75, true}, false);
  node.come_to(29501);
  node.actions.clear();
  node.welcome_in("2");
  CHECK(node.last<agent_action::SetKeepAlive>() != nullptr);
  CHECK(node.last<agent_action::CloseLink>() == nullptr);
}

}  // namespace
}  // namespace ddprun::membership
