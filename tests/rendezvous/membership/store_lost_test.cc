// SPDX-License-Identifier: Apache-2.0
// A node whose workers' store can't go on, because the rendezvous' journal lost its end or because
// the node lies.
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership::testing {
namespace {

using ddprun::test::Contains;

struct RunningJob : Script {
  RunningJob() : Script(2, 1) {
    settings.store = StoreMode::kProxy;
    for (const char* name : {"a", "b"}) join(name);
    REQUIRE(round("b") == 1);
  }
};

void lose_store(Script& j, const char* name) { j.loses_store(name, "replies are not known here"); }

TEST_CASE("StoreLost: the node is told and ends with 75, the round ends as with any lost node") {
  RunningJob j;
  lose_store(j, "b");
  CHECK(j.got<Refused>("b").exit_code == 75);
  CHECK_FALSE(j.got<Refused>("b").again);
  CHECK_THAT(j.got<Refused>("b").message, Contains("replies are not known here"));
  CHECK(j.last<Refused>("a") == nullptr);
  CHECK((j.last<StopRound>("a") != nullptr || j.last<JobEnd>("a") != nullptr));
  CHECK(j.table.status().front().node_losses == 1);
}

TEST_CASE("StoreLost: a node whose workers have all succeeded needs no store") {
  RunningJob j;
  j.says("b", WorkersSucceeded{1});
  lose_store(j, "b");
  CHECK(j.last<Refused>("b") == nullptr);
  j.says("a", WorkersSucceeded{1});
  CHECK(j.got<JobEnd>("b").exit_code == 0);
}

TEST_CASE("StoreLost: the node goes after the job's end, its verdict stays") {
  RunningJob j;
  for (const char* name : {"a", "b"}) j.says(name, WorkersSucceeded{1});
  lose_store(j, "b");
  REQUIRE(j.table.status().size() == 1);
  CHECK(j.table.status().front().nodes.size() == 1);
  lose_store(j, "b");  // the node has left, so its message counts for nobody
  j.acks("a");
  CHECK(j.table.idle());
}

}  // namespace
}  // namespace ddprun::membership::testing
