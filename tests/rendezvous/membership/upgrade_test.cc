// SPDX-License-Identifier: Apache-2.0
// The rows of an older ddprund are read, and peers of other versions are told so.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <set>

#include "common/text.h"
#include "rendezvous/journal/journal_file.h"
#include "rendezvous/messages/codec.h"
#include "tests/agent/link/agent_node.h"
#include "tests/rendezvous/membership/script.h"
#include "tests/support/golden.h"
#include "tests/support/temp_directory.h"

namespace ddprun::membership::testing {
namespace {

namespace json = boost::json;
using ddprun::test::Contains;

// golden/format1.db was written by the first ddprund that had --state-dir. Its job "running" has
// two nodes in round 2, after rank 3's failure. Its job "waiting" has one node of two.
journal::Content golden(const test::TempDirectory& directory) {
  std::filesystem::copy_file(DDPRUN_GOLDEN_JOURNAL, directory.path("journal.db"));
  return journal::JournalFile(directory.path(), journal::Durability::kProcess).load();
}

TEST_CASE("Upgrade: the journal of the first ddprund that kept one is read") {
  test::TempDirectory directory;
  const auto content = golden(directory);
  CHECK(content.losses.empty());
  JobTable table(journalled(), [] { return std::string("s"); });
  const Clock::time_point now = Clock::now();
  table.restore(content.rows, content.clock_shift, now);
  const auto jobs = table.status();
  REQUIRE(jobs.size() == 2);
  const JobStatus& running = jobs.at(0);
  CHECK(running.run_id == "running");
  CHECK(running.phase == "running");
  CHECK(running.round == 2);
  CHECK(running.failures == 1);
  CHECK(running.settings.max_nodes == 3);
  REQUIRE(running.rounds.size() == 2);
  CHECK_THAT(running.rounds[0].first_failure, Contains("failed with exit code 9"));
  REQUIRE(running.nodes.size() == 2);
  CHECK(running.nodes[0].node_rank == 1);
  CHECK(running.nodes[1].host == "node1");
  CHECK(jobs.at(1).run_id == "waiting");
  CHECK(jobs.at(1).round == 0);

  // The agents come back with what they know.
  event::Message back;
  back.connection = 1;
  Join join;
  join.run_id = "running";
  join.instance = "892f6e929ebbe227649c260aefaaa972";
  join.session = "6d6eb57579354c4674d169753331f928";
  back.envelope = {0, 3, join};
  bool welcome = false;
  for (const Action& action : table.step(back, now)) {
    const auto* send = variants::get_if<action::Send>(&action);
    welcome |= send != nullptr && variants::holds_alternative<Welcome>(send->envelope.message);
  }
  CHECK(welcome);
}

// Calls `visit` for each object and array element inside, also in texts that are JSON themselves.
// `visit` gets a field's name, and the whole without that field.
void without_each_field(const json::value& whole, json::value& part,
                        const std::function<void(const std::string&)>& visit) {
  if (auto* array = part.if_array()) {
    for (json::value& element : *array) without_each_field(whole, element, visit);
  } else if (auto* text = part.if_string(); text != nullptr && text->starts_with("{")) {
    const std::string kept(text->data(), text->size());
    json::value inner = json::parse(kept);
    without_each_field(inner, inner, [&](const std::string& name) {
      part = json::serialize(inner);
      visit(name);
    });
    part = kept;
  } else if (auto* object = part.if_object()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : *object) names.emplace_back(name);
    for (const std::string& name : names) {
      json::value kept = object->at(name);
      object->erase(name);
      visit(name);
      (*object)[name] = kept;
      without_each_field(whole, (*object)[name], visit);
    }
  }
}

TEST_CASE("Upgrade: any field of a row may be missing, and any other be there") {
  Script before(2, 1, journalled());
  before.settings.exclude_after = 1;
  for (const char* name : {"a", "b"}) before.join(name);
  before.fails("a", 1, 7);  // nobody has confirmed this failure and the StopRound
  before.keep();
  const journal::Rows& whole = before.rows;
  // Fields without which a job can't be read.
  const std::set<std::string> essential = {"id",   "num_nodes", "run_id",   "instance",
                                           "type", "session",   "max_nodes"};
  int num_tried = 0;
  for (const auto& entry : whole) {
    const std::string& key = entry.first;  // a lambda can't capture a structured binding
    json::value row = json::parse(entry.second);
    without_each_field(row, row, [&](const std::string& name) {
      if (essential.count(name) != 0) return;
      json::object changed = row.as_object();
      changed["of a later version"] = {1, 2};
      journal::Rows rows = whole;
      rows[key] = json::serialize(changed);
      JobTable table(journalled(), [] { return std::string("s"); });
      INFO(key << " without \"" << name << "\": " << rows[key]);
      const Actions actions = table.restore(rows, Clock::duration::zero(), before.now);
      const auto* log = variants::get_if<action::Log>(&actions.front());
      INFO((log == nullptr ? "" : log->text));
      REQUIRE_FALSE(table.idle());
      ++num_tried;
    });
  }
  CHECK(num_tried > 150);
}

TEST_CASE("Upgrade: the rows of a job have the bytes of old") {
  Script script(2, 1, journalled());
  script.settings.exclude_after = 2;
  for (const char* name : {"a", "b"}) script.join(name);
  for (const char* name : {"a", "b"}) script.says(name, WorkersRunning{1});
  script.fails("a", 1, 7);
  for (const char* name : {"a", "b"}) script.says(name, WorkersStopped{1, 2000, 41});
  for (const char* name : {"a", "b"}) script.says(name, WorkersRunning{2});
  script.keep();
  std::vector<std::string> texts;
  for (const auto& [key, row] : script.rows) texts.push_back(concat(key, " ", row));
  test::check_golden(DDPRUN_GOLDEN "/job_rows.txt", texts);
}

TEST_CASE("Upgrade: an agent of another version is refused by name, on both sides") {
  Script j(1);
  Join join = j.make_join("1");
  std::string message;
  SECTION("a newer one, which speaks ours no more") {
    join.version = 9;
    join.oldest_version = 8;
    j.join("1", join);
    message =
        "the ddprun at 10.0.0.1 speaks versions 8 to 9 of the control protocol, the "
        "rendezvous versions 1 to 3: install a newer ddprund (rendezvous)";
  }
  SECTION("an older one") {
    join.version = join.oldest_version = 0;
    j.join("1", join);
    message =
        "the ddprun at 10.0.0.1 speaks version 0 of the control protocol, the rendezvous "
        "versions 1 to 3: install a newer ddprun (agent)";
  }
  CHECK(j.got<Refused>("1").message == message);
  CHECK(j.got<Refused>("1").exit_code == 2);
  CHECK(j.logs.back() == "refused an agent: " + message);
}

TEST_CASE("Upgrade: a newer agent that speaks our version, too, is taken in with it") {
  Script j(1);
  Join join = j.make_join("1");
  join.version = 9;
  join.oldest_version = 1;
  // The message as it is on the wire, with further fields that are not known here.
  json::object text = json::parse(encode(AgentEnvelope{0, 0, join})).as_object();
  text["of a later version"] = "x";
  const AgentEnvelope envelope = decode_agent_message(json::serialize(text));
  j.join("1", variants::get<Join>(envelope.message));
  CHECK(j.got<Welcome>("1").version == kProtocolVersion);
  CHECK(j.round("1") == 1);
}

// An agent of the first version says it in this form, and its rendezvous answers in this form.
TEST_CASE("Upgrade: an agent of version 1 is taken in with it, and asked for no output") {
  Script j(1);
  Join join = j.make_join("1");
  join.version = join.oldest_version = 1;
  j.join("1", join);
  CHECK(j.got<Welcome>("1").version == 1);
  j.says("1", WorkersRunning{1});
  const TailRoute route = j.asks_for_tail(0, 7);
  CHECK_FALSE(route.connection);
  CHECK_THAT(route.why_not, Contains("is of an older version"));
  CHECK(j.last<TailWanted>("1") == nullptr);
}

TEST_CASE("Upgrade: an agent that comes back with another version is asked as that one is") {
  Script before(1, 0, journalled());
  before.join("1");
  before.says("1", WorkersRunning{1});
  CHECK(before.asks_for_tail(0, 7).connection);
  before.keep();
  const auto after = before.restarted();
  CHECK_FALSE(after->asks_for_tail(0, 8).connection);  // the agent is not back yet
  Join old = after->make_join("1");
  old.version = old.oldest_version = 1;
  after->join("1", old);
  CHECK_THAT(after->asks_for_tail(0, 8).why_not, Contains("is of an older version"));
}

TEST_CASE("Upgrade: a rendezvous of version 1 takes this agent in, which runs as ever") {
  // A ddprund of version 1 can choose one of the versions that this Join names.
  const auto said = json::parse(encode(AgentEnvelope{0, 0, Join{}})).as_object();
  CHECK(said.at("version") == 3);
  CHECK(said.at("oldest_version") == 1);
  AgentNode node;
  node.say_join();
  Welcome welcome;
  welcome.version = 1;
  welcome.session = "s";
  node.hear(welcome, false);
  node.start(1);
  CHECK(node.last<agent_action::Spawn>() != nullptr);
  CHECK(node.last<agent_action::Exit>() == nullptr);
}

TEST_CASE("Upgrade: a join that only a newer agent says needs no field but its versions") {
  const auto envelope = decode_agent_message(
      R"({"type":"join","seq":0,"ack":0,"version":9,"oldest_version":8,"settings":7})");
  CHECK_FALSE(common_version(variants::get<Join>(envelope.message)));
  const auto alone = decode_agent_message(R"({"type":"join","seq":0,"ack":0,"version":9})");
  CHECK_FALSE(common_version(variants::get<Join>(alone.message)));
}

TEST_CASE("Upgrade: a rendezvous of a pair ends the agent as one that speaks another version") {
  for (const char* text :
       {R"({"type":"welcome","seq":0,"ack":0,"version":2,"session":"s","your_addr":"10.0.0.1",)"
        R"("keep_alive_ms":5000,"embedded":false,"clock_us":0,"term":"t1"})",
        R"({"type":"claim","seq":0,"ack":0,"term":"t2","basis":"t1"})"}) {
    AgentNode node;
    node.say_join();
    node(agent_event::LinkMessage{decode_rendezvous_message(text)});
    REQUIRE(node.last<agent_action::Exit>() != nullptr);
    const JobEnd& verdict = node.last<agent_action::Exit>()->verdict;
    CHECK(verdict.exit_code == 2);
    CHECK_THAT(verdict.reason, Contains("speaks version 0 of the control protocol, this ddprun 3: "
                                        "install the same ddprun on both"));
  }
}

TEST_CASE("Upgrade: a refusal of a pair's rendezvous is obeyed") {
  const auto envelope = decode_rendezvous_message(
      R"({"type":"refused","seq":0,"ack":0,"message":"no","exit_code":75,"again":false,)"
      R"("term":"t2","line":["t1"]})");
  AgentNode node;
  node.say_join();
  node(agent_event::LinkMessage{envelope});
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 75);
}

TEST_CASE("Upgrade: a rendezvous that speaks another version ends the agent with one line") {
  AgentNode node;
  node.say_join();
  const auto envelope =
      decode_rendezvous_message(R"({"type":"welcome","seq":0,"ack":0,"version":4,"new":[]})");
  node(agent_event::LinkMessage{envelope});
  const auto* end = node.last<agent_action::Exit>();
  REQUIRE(end != nullptr);
  CHECK(end->verdict.exit_code == 2);
  CHECK_THAT(end->verdict.reason,
             Contains("speaks version 4 of the control protocol, this ddprun 3"));
}

}  // namespace
}  // namespace ddprun::membership::testing
