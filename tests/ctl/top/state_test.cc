// SPDX-License-Identifier: Apache-2.0
// What a rendezvous says, as `ddprunctl top` takes it.
#include "ctl/top/state.h"

#include <string>

#include "common/error.h"
#include "ctl/top/history.h"
#include "ctl/top/keys.h"
#include "ctl/top/view.h"
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
  CHECK(job.nodes[1].monitor->received == Approx(1.2e9));
}

TEST_CASE("top's state: of a job that isn't whole no node's first rank is known") {
  std::string frame = testing::state_frame(job_json("a", 2));
  frame.replace(frame.find("\"hidden_nodes\":[0]"), 18, "\"hidden_nodes\":[7]");
  const Message message = read_message(frame);
  CHECK(message.state.jobs.front().num_hidden == 7);
  CHECK_FALSE(message.state.jobs.front().nodes.front().first_rank);
}

TEST_CASE("top's state: each kind of message, and what is none") {
  using Kind = Message::Kind;
  CHECK(read_message(testing::state_frame("")).kind == Kind::kState);
  CHECK(read_message(concat(R"({"type":"status","status":)", testing::kStatus, "}")).kind ==
        Kind::kStatus);
  CHECK(read_message(R"({"type":"too_large","bytes":4000000})").num_bytes == 4e6);
  CHECK(read_message(R"({"type":"end","why":"it stands by"})").why == "it stands by");
  CHECK(read_message(R"({"type":"news"})").kind == Kind::kUnknown);
  for (const char* text :
       {"", "[]", "nonsense", R"({"type":7})", R"({"type":"state"})", R"({"type":"status"})",
        R"({"type":"state","status":{},"jobs":{"jobs":[]}})", R"({"type":"end","why":{}})"}) {
    CAPTURE(text);
    CHECK(test::code_of([&] { read_message(text); }) == ErrorCode::kProtocol);
  }
  CHECK(test::code_of([&] { read_pages("{}", "{}"); }) == ErrorCode::kProtocol);
  CHECK(read_pages(testing::kStatus, R"({"jobs":[]})").jobs.empty());
}

TEST_CASE("top's state: numbers without measure are bounded, and nothing overflows") {
  const State state = state_of(
      R"({"run_id":"a","phase":"forming","min_nodes":9223372036854775807,"max_nodes":-9223372036854775807,)"
      R"("nodes":[{"host":"h","phase":"idle","node_rank":1,"num_workers":9223372036854775807,)"
      R"("connected":true,"step_times":[[-9223372036854775807,1e308,1e308]]}]})");
  CHECK_THAT(waits_text(state.jobs.front()), Contains("waits for 1099511627775 more nodes"));
  CHECK_FALSE(testing::picture_text(state, 80, 24).empty());
}

TEST_CASE("top: who is waited for, in every phase") {
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
  for (int i = 0; i < 5'000; ++i) series.add(i);
  CHECK(series.values().size() <= Series::kMost);
  CHECK(series.values().front() == 0);
  CHECK(series.values().back() == 4'999);
  History history;
  history.take(state_of(job_json("a", 2)));
  history.take(state_of(job_json("a", 2)));
  CHECK(history.of("a").loss.values().size() == 2);
  CHECK(history.of("a").network.values().back() == Approx(4.4e9));
  history.take(state_of(job_json("b", 2)));
  CHECK(history.of("a").loss.values().empty());
}

std::vector<Key> keys_of(const std::vector<std::string>& pieces) {
  KeyReader reader;
  std::vector<Key> all;
  for (const std::string& piece : pieces) {
    for (const Key key : reader.take(piece)) all.push_back(key);
  }
  return all;
}

TEST_CASE("top's keys: letters, arrows, also in pieces, and what is none is passed over") {
  CHECK(keys_of({"jkq"}) == std::vector{Key::kDown, Key::kUp, Key::kQuit});
  CHECK(keys_of({"\x1b[A\x1bOB\x1b[5~"}) == std::vector{Key::kUp, Key::kDown, Key::kPageUp});
  CHECK(keys_of({"\x1b[", "6", "~"}) == std::vector{Key::kPageDown});
  CHECK(keys_of({"\x1b"}) == std::vector{Key::kEscape});
  CHECK(keys_of({"\x1b[200~\x1b[1;5Cxyz\xff"}).empty());
  CHECK(keys_of({"\x1b[" + std::string(1'000, '1'), "j"}).back() == Key::kDown);
}

TEST_CASE("top's view: keys choose a job, and it stays chosen as others come and go") {
  View view;
  State state = state_of(job_json("a", 1) + "," + job_json("b", 1), finished_json("old", 9));
  REQUIRE(num_jobs(state) == 3);
  CHECK(view.focus_on(state) == Focus::kList);
  CHECK(press(view, Key::kDown, state, {}));
  CHECK(chosen(state, view) == 1U);
  state = state_of(job_json("new", 1) + "," + job_json("a", 1) + "," + job_json("b", 1));
  CHECK(chosen(state, view) == 2U);
  state = state_of(job_json("a", 1), finished_json("x", 0) + "," + finished_json("b", 0));
  CHECK(key_of(state, *chosen(state, view)).starts_with("b\n"));
  CHECK(press(view, Key::kLast, state, {}));
  CHECK(key_of(state, *chosen(state, view)).starts_with("x\n"));
  CHECK(press(view, Key::kEnter, state, {}));
  CHECK(view.focus_on(state) == Focus::kJob);
  CHECK(press(view, Key::kDown, state, {.most_scroll = 1, .page = 10}));
  CHECK(press(view, Key::kDown, state, {.most_scroll = 1, .page = 10}));
  CHECK(view.scroll == 1);
  CHECK(press(view, Key::kSort, state, {}));
  CHECK(view.order == NodeOrder::kCpu);
  CHECK_FALSE(press(view, Key::kQuit, state, {}));
}

}  // namespace
}  // namespace ddprun::top
