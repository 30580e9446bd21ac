// SPDX-License-Identifier: Apache-2.0
// Reports of agents about their nodes: on the wire, and in the table of jobs.
#include "rendezvous/messages/reports.h"

#include <limits>

#include "common/error.h"
#include "rendezvous/messages/codec.h"
#include "tests/agent/link/agent_node.h"
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using ddprun::test::Contains;

NodeReport whole_report() {
  NodeReport report;
  report.num_cpus = 64;
  report.cpu = 0.41;
  report.memory_bytes = 540'000'000'000;
  report.memory_used_bytes = 81'000'000'000;
  report.retransmit_rate = 3.25;
  report.interfaces = {{"eth0", 1.2e9, 1.1e9}, {"eth1", 0, 0}};
  report.gpus = {{0, 0.97, 85'000'000'000, 71'000'000'000, 512.3, 61.0}, {}};
  report.gpus[1].index = 3;
  return report;
}

std::string report_text(const NodeReport& report) {
  StepTimes times{4, {}};
  times.monitor = report;
  return encode(AgentEnvelope{0, 0, times});
}

std::optional<NodeReport> back(const std::string& text) {
  return variants::get<StepTimes>(decode_agent_message(text).message).monitor;
}

// The reason why the text is refused; "": it isn't.
std::string error_of(std::string text, const std::string& part, const std::string& by) {
  const std::size_t at = text.find(part);
  REQUIRE(at != std::string::npos);
  try {
    decode_agent_message(text.replace(at, part.size(), by));
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kProtocol);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Codec: a node's readings survive the way, an older agent, which says none, is heard") {
  CHECK(back(report_text(whole_report())) == whole_report());
  CHECK(back(report_text(NodeReport())) == NodeReport());
  CHECK_FALSE(back(encode(AgentEnvelope{0, 0, StepTimes{4, {}}})));
}

TEST_CASE("Codec: a node's readings that are hostile are refused, or within their bounds") {
  const std::string text = report_text(whole_report());
  CHECK_THAT(error_of(text, "\"cpus\":64", "\"cpus\":-1"), Contains("\"cpus\""));
  CHECK_THAT(error_of(text, "\"memory_bytes\":5", "\"memory_bytes\":-5"), Contains("memory_bytes"));
  CHECK_THAT(error_of(text, "\"name\":\"eth0\"", "\"name\":7"), Contains("\"name\""));
  CHECK_THAT(error_of(text, "\"gpu\":3", "\"gpu\":4097"), Contains("\"gpu\""));
  CHECK_THAT(error_of(text, "\"interfaces\":[", "\"interfaces\":[1,"), Contains("\"interfaces\""));
  CHECK_THAT(error_of(text, "\"monitor\":{", "\"monitor\":7,\"x\":{"), Contains("\"monitor\""));
  std::string many;
  for (std::size_t i = 0; i <= kMaxReportedGpus; ++i) many += R"({"gpu":0},)";
  CHECK_THAT(error_of(text, "\"gpus\":[", "\"gpus\":[" + many), Contains("more than 16"));
  NodeReport wild = whole_report();
  wild.cpu = std::numeric_limits<double>::quiet_NaN();
  wild.retransmit_rate = 1e300;
  wild.gpus[0].use = 17;
  wild.interfaces[0].name = std::string(500, '\x1b');
  wild.interfaces.resize(50);
  wild.gpus.resize(50);
  const auto tame = back(report_text(wild));
  REQUIRE(tame);
  CHECK(tame->cpu == 0.0);
  CHECK(tame->retransmit_rate == 1e15);
  CHECK(tame->gpus[0].use == 1.0);
  CHECK(tame->interfaces.size() == kMaxReportedInterfaces);
  CHECK(tame->gpus.size() == kMaxReportedGpus);
  CHECK(tame->interfaces[0].name.size() < 40);
  CHECK(tame->interfaces[0].name.find('\x1b') == std::string::npos);
  NodeReport largest = whole_report();
  largest.interfaces.assign(kMaxReportedInterfaces,
                            {std::string(500, 'x'), 1.23456789e14, 1.2345e14});
  largest.gpus.assign(kMaxReportedGpus, whole_report().gpus[0]);
  CHECK(report_text(largest).size() < 4096);
}

TEST_CASE("AgentMachine: a node is told of while there is a rendezvous, with workers or without") {
  AgentNode node;
  const agent_event::NodeRead read{whole_report()};
  node.say_join();
  node(read);
  CHECK(node.said<StepTimes>() == nullptr);
  node.welcome();
  node(read);
  REQUIRE(node.said<StepTimes>() != nullptr);
  CHECK(node.said<StepTimes>()->monitor == whole_report());
  CHECK_FALSE(node.said<StepTimes>()->training);
  node.start(1);
  node.actions.clear();
  SECTION("together with how far its ranks are") {
    TrainingStatus training;
    training.phase = "train";
    training.step = 7;
    node(agent_event::StepsTimed{1, {}, training, whole_report()});
    REQUIRE(node.said<StepTimes>() != nullptr);
    CHECK(node.said<StepTimes>()->monitor == whole_report());
    CHECK(node.said<StepTimes>()->training);
  }
  node(read);
  REQUIRE(node.said<StepTimes>() != nullptr);
  CHECK(node.said<StepTimes>()->round == 1);
  node.actions.clear();
  node(agent_event::LinkDown{false, "reset"});
  node(read);
  CHECK(node.said<StepTimes>() == nullptr);
}

TEST_CASE("Node readings: the last one of each node is shown, in any round, and is not kept") {
  testing::Script j(2, 0, testing::journalled());
  StepTimes said{0, {}};
  said.monitor = whole_report();
  j.join("1");
  j.keep();
  const journal::Rows before = j.rows;
  j.mentions("1", said);  // the node waits for the other one
  j.keep();
  CHECK(j.rows == before);
  const auto shown = [&](std::size_t node) {
    return j.table.status().front().nodes.at(node).monitor;
  };
  REQUIRE(shown(0));
  CHECK(shown(0)->report == whole_report());
  CHECK(shown(0)->at == j.now);
  j.join("2");
  CHECK_FALSE(shown(1));
  said.round = 77;  // there is no such round
  said.monitor->cpu = 0.5;
  j.mentions("2", said);
  j.mentions("1", StepTimes{1, {}});  // later words take nothing back
  CHECK(shown(1)->report.cpu == 0.5);
  CHECK(shown(0)->report.cpu == 0.41);
  CHECK_FALSE(j.table.status().front().training);
  CHECK(j.last<JobEnd>("2") == nullptr);
}

}  // namespace ddprun::membership
