// SPDX-License-Identifier: Apache-2.0
// The rendezvous' state as `ddprunctl top` reads it.
#include "ctl/top/state.h"

#include <string>

#include "common/error.h"
#include "tests/ctl/top/sample_state.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::top {
namespace {

using ddprun::test::Contains;
using testing::finished_json;
using testing::job_json;
using testing::state_of;

TEST_CASE("top's state: a job's nodes are in the order of their ranks, with their first ones") {
  const std::string backwards = R"({"run_id":"a","phase":"running","nodes":[)" +
                                testing::node_json({.host = "b", .workers = 2}, 1, 8) + "," +
                                testing::node_json({.host = "a"}, 0, 0) + "]}";
  const State state = state_of(backwards);
  REQUIRE(state.jobs.size() == 1);
  const Job& job = state.jobs.front();
  REQUIRE(job.nodes.size() == 2);
  CHECK(job.nodes[0].host == "a");
  CHECK(job.nodes[0].first_rank == 0);
  CHECK(job.nodes[1].first_rank == 8);
  CHECK(job.nodes[1].times.front().rank == 8);
  CHECK(job.nodes[1].times.front().seconds == Approx(0.04));
  CHECK(job.nodes[1].received == Approx(1.2e9));
  CHECK(job.nodes[1].memory == Approx(0.5));
}

TEST_CASE("top's state: a node without a place is a spare, but before the first round it waits") {
  for (const int round : {0, 1}) {
    CAPTURE(round);
    const State state =
        state_of(R"({"run_id":"a","round":)" + std::to_string(round) +
                 R"(,"nodes":[{"host":"n0","phase":"idle","connected":true,"num_workers":1}]})");
    CHECK(state.jobs.front().nodes.front().condition == (round == 0 ? kIdle : kSpare));
  }
}

TEST_CASE("top's state: a job with hidden nodes has no first rank of a node") {
  std::string frame = testing::state_frame(job_json("a", 2));
  frame.replace(frame.find("\"hidden_nodes\":[0]"), 18, "\"hidden_nodes\":[7],\"hidden_jobs\":4");
  const State state = read_state(read_json(frame));
  CHECK(state.jobs.front().num_hidden == 7);
  CHECK(state.num_hidden_live == 4);
  CHECK(num_here(state.jobs.front()) == 9);
  CHECK_FALSE(state.jobs.front().nodes.front().first_rank);
}

TEST_CASE(
    "top's state: a text that is no state is an error, and a field of another type is not there") {
  for (const char* text : {"", "nonsense", "{", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["}) {
    CAPTURE(text);
    CHECK(test::code_of([&] { read_json(text); }) == ErrorCode::kProtocol);
  }
  for (const char* text :
       {"[]", "7", R"({"type":"state"})", R"({"status":{},"jobs":{"jobs":[]}})",
        R"({"status":{"version":"1"},"jobs":{"jobs":{}}})", R"({"status":7,"jobs":[]})"}) {
    CAPTURE(text);
    CHECK(test::code_of([&] { read_state(read_json(text)); }) == ErrorCode::kProtocol);
  }
  const State state = read_state(read_json(
      R"({"status":{"version":"1","journal":[],"agents":7},"jobs":{"jobs":[7,{"run_id":[],"nodes":{}},)"
      R"({"run_id":"a","phase":3,"nodes":[[],{"host":[],"step_times":[[],[1],3,["a","b","c"]],)"
      R"("monitor":{"cpu":"all","gpus":[1,{"use":"x"}]}}],"rounds":[1,{}],"training":[],"hang":{},)"
      R"("stragglers":[1,{}],"excluded":[1]}],"finished":[null,{"nodes":3}]},"hidden_nodes":["x"]})"));
  CHECK(state.num_live == 3);
  CHECK(state.jobs.size() == 5);
  CHECK(state.jobs.at(2).nodes.size() == 2);
  for (const Job& job : state.jobs) {
    CHECK_FALSE(
        testing::picture_text(state, 80, 24, {.wanted = job.key(), .has_list = false}).empty());
  }
}

TEST_CASE("top's state: texts are harmless, a run id is as it came") {
  const State state = state_of(job_json(R"(\u001b[2J)", 1, R"(,"reason":"\u001b[2J\u202e")"));
  CHECK(state.jobs.front().run_id == "\x1b[2J");
  CHECK(text(state.jobs.front().said, "reason") == "\\x1b[2J\\u202e");
}

TEST_CASE("top's state: numbers without measure are bounded, and nothing overflows") {
  const State state = state_of(
      R"({"run_id":"a","phase":"forming","min_nodes":9223372036854775807,"max_nodes":-9223372036854775807,)"
      R"("nodes":[{"host":"h","phase":"idle","node_rank":1,"num_workers":9223372036854775807,)"
      R"("connected":true,"step_times":[[-9223372036854775807,1e308,1e308]]}]})");
  CHECK_THAT(waits_text(state.jobs.front()), Contains("waits for 1099511627775 more nodes"));
  CHECK_FALSE(testing::picture_text(state, 80, 24).empty());
}

TEST_CASE("top: the nodes that are waited for are named, in every phase") {
  const auto waits = [](const std::string& more) {
    return waits_text(state_of(R"({"run_id":"a","min_nodes":3,"max_nodes":4,"nodes":[)" +
                               testing::node_json({.host = "a", .phase = "stopping"}, 0, 0) + "," +
                               testing::node_json({.host = "b", .connected = false}, 1, 8) + "]," +
                               more + "}")
                          .jobs.front());
  };
  CHECK(waits(R"("phase":"forming")") ==
        "waits for 2 more nodes: 1 of 3 are here; no connection to node 1 (b)");
  CHECK(waits(R"("phase":"stopping")") ==
        "waits for workers to stop on node 0 (a); no connection to node 1 (b)");
  CHECK_THAT(waits(R"("phase":"ended")"), Contains("has ended"));
  CHECK(waits_text(state_of(job_json("a", 2)).jobs.front()).empty());
  CHECK(names_text({"a", "b", "c", "d", "e", "f"}) == "a, b, c, d and 2 more");
  CHECK(rank_named("rank 17 (node 1, x) is slow") == 17);
  CHECK(rank_named("rank x") == -1);
  CHECK(rank_named("rank 99999999999999999999 is") == -1);
}

TEST_CASE("top's history: it begins where it began, however long it lasts, and forgets jobs") {
  Series series;
  for (int i = 0; i < 5'000; ++i) add_value(series, i);
  CHECK(series.size() <= kMostValues);
  CHECK(series.front() == 0);
  CHECK(series.back() == 4'999);
  History history;
  remember(history, state_of(job_json("a", 2)));
  remember(history, state_of(job_json("a", 2)));
  CHECK(history.at("a")[kLoss].size() == 2);
  CHECK(history.at("a")[kNetwork].back() == Approx(4.4e9));
  remember(history, state_of(job_json("b", 2)));
  CHECK_FALSE(history.contains("a"));
}

}  // namespace
}  // namespace ddprun::top
