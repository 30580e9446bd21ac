// SPDX-License-Identifier: Apache-2.0
// A node for which a job has no place: a spare, or another job that found its name or port in use.
#include "rendezvous/messages/messages.h"
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using ddprun::test::Contains;
using testing::Script;
using namespace std::chrono_literals;

// A node whose settings differ, under the name "late".
struct Surplus : Script {
  using Script::Script;
  Join late_join(const std::string& program = "train", std::uint32_t user_id = 0) const {
    Join join = make_join("late");
    join.program = program;
    join.user_id = user_id;
    return join;
  }
  std::string refusal(const Join& join) {
    agents["late"] = {};
    this->join("late", join);
    const auto* refused = last<Refused>("late");
    if (refused == nullptr) return "taken in";
    CHECK(refused->exit_code == 2);
    CHECK(agents["late"].closed);
    return refused->message;
  }
};

TEST_CASE("Surplus: the port is in use with fixed ranks, and its holder is named") {
  Surplus j(1);
  j.settings.rdzv_backend = kStaticBackend;
  Join first = j.make_join("1");
  first.pid = 4711;
  j.join("1", first);
  CHECK_THAT(j.refusal(j.late_join()),
             Contains("is in use by ddprun, pid 4711 on 1, which runs train (job job)"));
  j.settings.spares = 1;
  CHECK_THAT(j.refusal(j.late_join()), Contains("--spares is 1 here, but 0 on"));
}

TEST_CASE("Surplus: a job of one node has no spare that nobody asked for") {
  Surplus j(1);
  j.join("1");
  CHECK_THAT(j.refusal(j.late_join()),
             Contains("job job already has 1 of 1 node: it is in use by ddprun, pid 0 on 1, which "
                      "runs train; for a new job give another --rdzv-id"));
  SECTION("a node that is about to go, or lost its connection, keeps no place") {
    SECTION("warned") { j.says("1", Preempted{Preempted::Kind::kNode, "got SIGUSR1", 60s}); }
    SECTION("cut off") { j.closes("1"); }
    CHECK(j.refusal(j.late_join()) == "taken in");
  }
  SECTION("the name of a job that has ended is free") {
    j.says("1", WorkersRunning{1});
    j.says("1", WorkersSucceeded{1});
    CHECK(j.refusal(j.late_join()) == "taken in");
    CHECK(j.round("late") == 1);
  }
}

TEST_CASE("Surplus: another program, or user, beyond the nodes and spares is another job") {
  const int num_spares = GENERATE(0, 2);
  Surplus j(2);
  j.settings.spares = num_spares;
  for (int i = 0; i < 2 + num_spares; ++i) j.join("node" + std::to_string(i));
  CHECK_THAT(j.refusal(j.late_join("evaluate")), Contains("which runs train; for a new job"));
  CHECK_THAT(j.refusal(j.late_join("train", 65'534)), Contains("which runs train as user 0;"));
  CHECK(j.refusal(j.late_join()) == "taken in");
  CHECK(j.got<Waiting>("late").spare);
}

TEST_CASE("Surplus: a spare that was asked for, and a node in a lost one's place, may differ") {
  Surplus j(2);
  SECTION("a spare") {
    j.settings.spares = 1;
    j.join("1");
    j.join("2");
    CHECK(j.refusal(j.late_join("./train", 7)) == "taken in");
  }
  SECTION("a replacement") {
    j.timeouts.replacement = 10s;
    j.join("1");
    j.join("2");
    j.closes("2");
    j.wait(151ms);
    j.says("1", WorkersStopped{1, 1001});
    CHECK(j.refusal(j.late_join("./train", 7)) == "taken in");
    CHECK(j.round("late") == 2);
  }
}

}  // namespace
}  // namespace ddprun::membership
