// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/gangs/node_messages.h"

#include "common/error.h"
#include "common/text.h"
#include "tests/rendezvous/gangs/queue_script.h"
#include "tests/support/catch.h"
#include "tests/support/golden.h"

namespace ddprun::gangs {
namespace {

using ddprun::test::Contains;

NodeHello hello_of_alice() {
  NodeHello hello;
  hello.version = "1";
  hello.instance = "i";
  hello.node = "n1";
  hello.user = "alice";
  hello.uid = 1000;
  hello.slots = 4;
  hello.gangs = {{"a", 2, true, 9, "why"}};
  return hello;
}

TEST_CASE("Node messages: a message is heard as it was said") {
  const NodeHello hello = hello_of_alice();
  const auto heard = variants::get<NodeHello>(decode_node_message(encode(NodeMessage(hello))));
  CHECK(heard.node == "n1");
  CHECK(heard.uid == 1000);
  REQUIRE(heard.gangs.size() == 1);
  CHECK(heard.gangs[0].ended);
  CHECK(heard.gangs[0].exit_code == 9);
  const auto ended = decode_node_message(encode(NodeMessage(PartEnded{"a", 3, "no directory"})));
  CHECK(variants::get<PartEnded>(ended).reason == "no directory");
  StartPart start;
  start.gang = "a";
  start.arguments = {"--", "train"};
  start.environment = {"A=1"};
  const auto begun = decode_queue_message(encode(QueueMessage(start)));
  CHECK(variants::get<StartPart>(begun).arguments == start.arguments);
  const auto asked = decode_queue_message(encode(QueueMessage(OutputRequest{7, "a", 1, 2, 3, 4})));
  CHECK(variants::get<OutputRequest>(asked).request == 7);
  CHECK(variants::get<OutputRequest>(asked).err == 2);
}

TEST_CASE("Node messages: each has the bytes of old") {
  const std::vector<NodeMessage> said = {hello_of_alice(), PartStarted{"a"},
                                         PartEnded{"a", 3, "no directory"},
                                         OutputAnswer{7, "bw==", "", 1, 2, "gone"}};
  const std::vector<QueueMessage> heard = {
      Welcome{1, "2", 5'000},
      NodeRefused{"two of them", true},
      StartPart{"a", 2, "2", "4", {"--", "train"}, {"A=1"}, "/home/alice", 10'000},
      StopPart{"a"},
      ForgetPart{"a"},
      OutputRequest{7, "a", 1, 2, 3, 4}};
  CHECK(said.size() == variants::variant_size_v<NodeMessage>);
  CHECK(heard.size() == variants::variant_size_v<QueueMessage>);
  std::vector<std::string> texts;
  for (const NodeMessage& message : said) texts.push_back(encode(message));
  for (const QueueMessage& message : heard) texts.push_back(encode(message));
  test::check_golden(DDPRUN_GOLDEN "/node_messages.txt", texts);
}

TEST_CASE("GangQueue: its rows have the bytes of old") {
  testing::QueueScript script;
  script.came("n1", 8);
  script.submit("runs", 1, "4");
  script.started("n1", "runs");
  script.submit("over", 1, "2");
  script.ended("n1", "over", 3, "no directory");
  script.submit("waits", 2, "4");
  script.keep();
  std::vector<std::string> texts;
  for (const auto& [key, row] : script.rows) texts.push_back(concat(key, " ", row));
  test::check_golden(DDPRUN_GOLDEN "/gang_rows.txt", texts);
}

TEST_CASE("Node messages: nothing but the versions is read in a hello of other versions") {
  const auto hello = [](const char* protocols) {
    return variants::get<NodeHello>(decode_node_message(
        concat(R"({"type":"hello",)", protocols, R"(,"node":"n1","gangs":[],"slots":7})")));
  };
  CHECK(hello(R"("protocol":9,"oldest_protocol":1)").slots == 7);
  CHECK(hello(R"("protocol":1)").slots == 7);
  const auto newer = variants::get<NodeHello>(decode_node_message(
      R"({"type":"hello","protocol":9,"oldest_protocol":8,"slots":"many","gangs":7})"));
  CHECK(to_string(newer.protocols) == "versions 8 to 9");
  CHECK_FALSE(newest_in_both(newer.protocols, kNodeProtocols));
  CHECK_THROWS_WITH(hello(R"("protocol":1,"oldest_protocol":5)"), Contains("is larger than"));
  // The first agents said it in this form, with one version.
  CHECK(to_string(hello(R"("protocol":2)").protocols) == "version 2");
}

TEST_CASE("Node messages: fields that are not known are skipped, other types are not") {
  CHECK(variants::get<PartStarted>(decode_node_message(R"({"type":"started","gang":"a","new":1})"))
            .gang == "a");
  CHECK_THROWS_WITH(decode_node_message(R"({"type":"started","gang":1})"),
                    Contains("makes no sense"));
  CHECK_THROWS_WITH(decode_node_message(R"({"type":"dance"})"), Contains("no message \"dance\""));
  CHECK_THROWS_AS(decode_node_message("[]"), Error);
  CHECK_THROWS_AS(decode_queue_message("{"), Error);
}

}  // namespace
}  // namespace ddprun::gangs
