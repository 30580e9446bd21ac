// SPDX-License-Identifier: Apache-2.0
// The picture for screens of every size, of jobs of every size, with any names.
#include "ctl/top/picture.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/text.h"
#include "tests/ctl/top/sample_state.h"
#include "tests/support/catch.h"

namespace ddprun::top {
namespace {

using ddprun::test::Contains;
using testing::finished_json;
using testing::job_json;
using testing::live;
using testing::picture_text;
using testing::state_of;

constexpr char kStraggler[] =
    R"(,"stragglers":["rank 517 (node 64, gpu064) lags behind: 90 ms of its own, median 30 ms"])";

// A job of 1,000 ranks on 125 nodes. One rank lags behind, and one node is lost.
State large() {
  return state_of(job_json("large", 125, kStraggler, [](int i, testing::SampleNode& node) {
    node.own_us = [](int rank) { return rank == 517 ? 90'000 : 30'000 + rank; };
    if (i == 100) node.connected = false;
  }));
}

// The picture has exactly this many rows, and none is longer than the screen.
void check_size(const State& state, View view, std::size_t columns, std::size_t rows) {
  const Lines lines = screen_picture(live(state), view, columns, rows);
  CHECK(lines.size() == rows);
  for (const std::string& line : lines) {
    const std::string text = without_styles(line);
    CAPTURE(text);
    CHECK(columns_of(line) <= columns);
    CHECK(harmless(text) == text);
  }
}

TEST_CASE("top's picture: it has the width and the height of the screen, whatever is shown") {
  const std::string evil = R"(\u001b[2J\u202eevil\n計算機 \u0301)" + std::string(300, 'x');
  const std::vector<State> states = {
      state_of(""), state_of(job_json("a", 1)),
      state_of(job_json("a", 2) + "," + job_json("b", 2), finished_json("old", 9)), large(),
      state_of(job_json(evil, 3,
                        concat(R"(,"stragglers":["rank 1 )", evil, R"("],"reason":")", evil,
                               R"(","hang":{"round":2,"text":")", evil, R"(","lines":[")", evil,
                               R"("]})"),
                        [&](int, testing::SampleNode& node) { node.host = evil; }),
               finished_json(evil, 1))};
  for (const auto& [columns, rows] : std::vector<std::pair<std::size_t, std::size_t>>{
           {40, 10}, {80, 24}, {200, 60}, {20, 4}, {7, 2}, {1, 1}, {133, 11}}) {
    for (const State& state : states) {
      CAPTURE(columns, rows);
      check_size(state, {}, columns, rows);
      check_size(state, {.has_list = false, .scroll = 5}, columns, rows);
      check_size(state, {.has_list = true}, columns, rows);
      check_size(state, {.has_help = true}, columns, rows);
    }
  }
}

TEST_CASE("top's picture: 80x24 characters show all that matters of a job of two nodes") {
  const std::string text =
      picture_text(state_of(job_json("nightly", 2)), 80, 24, {.has_list = false});
  CHECK_THAT(
      text,
      Contains("ddprun top head:29400") && Contains("nightly  running") &&
          Contains(
              "round 2 · 2 of 2 nodes · 16 ranks · ETTR 93 % · failures 1/3 · node losses 0/100") &&
          Contains("no hang is known") && Contains("TRAINING step 12,345") && Contains("2.31") &&
          Contains("RANKS 16: 16 running") && Contains("RESTARTS 1") &&
          Contains("rank 3 (node 0, gpu000) was killed") && Contains("NODES by rank") &&
          Contains("gpu001") && Contains("q quit"));
}

TEST_CASE("top's picture: a rank that hangs is not in order") {
  constexpr char kHang[] = R"(,"hang":{"round":2,"text":"hang: rank 1 sleeps","lines":[]})";
  const std::string text =
      picture_text(state_of(job_json("a", 2, kHang)), 80, 24, {.has_list = false});
  CHECK_THAT(text, Contains("\nhang: rank 1 sleeps\n") && !Contains("in order"));
}

TEST_CASE("top's picture: a loss that is no number is said, and on how many ranks") {
  std::string job = job_json("nightly", 2);
  const std::string loss = R"("loss":2.314,)";
  job.replace(job.find(loss), loss.size(), R"("loss":null,"nan_ranks":3,)");
  const std::string text = picture_text(state_of(job), 80, 24, {.has_list = false});
  CHECK_THAT(text, Contains("loss       NaN") && Contains("the loss is no number on 3 ranks") &&
                       Contains("samples/s"));
}

TEST_CASE("top's picture: framework, skipped steps and GPU memory of an observed program") {
  std::string job = job_json("nightly", 2);
  const std::string loss = R"("loss":2.314,)";
  job.replace(job.find(loss), loss.size(),
              loss + R"("framework":"PyTorch 2.15.0, nccl, 8 ranks","skipped_steps":3,)" +
                  R"("gpu_memory_peak":{"bytes":2147483648,"rank":5},)");
  const std::string text = picture_text(state_of(job), 80, 60, {.has_list = false});
  CHECK_THAT(text, Contains("PyTorch 2.15.0, nccl, 8 ranks · 3 skipped steps") &&
                       Contains("GPU memory at most 2.0 GiB (rank 5)"));
}

TEST_CASE("top's picture: one step time, which the programs tell, else their agents measured") {
  std::string job = job_json("nightly", 2, "", [](int, testing::SampleNode& node) {
    node.own_us = [](int rank) { return rank == 3 ? 36'000 : 30'000; };
  });
  const auto text = [&] { return picture_text(state_of(job), 200, 60, {.has_list = false}); };
  CHECK_THAT(text(), Contains("step time  41.0 ms") && !Contains("40.0 ms") &&
                         Contains("slowest: rank 3 (gpu000) 36.0 ms of its own"));
  job.replace(job.find("\"step_parts\""), 12, "\"not_told\"");
  CHECK_THAT(text(), Contains("step time  40.0 ms") && !Contains("41.0 ms"));
}

TEST_CASE("top's picture: a value that isn't there, or isn't limited, has no figure") {
  const State forming = state_of(
      R"({"run_id":"a","phase":"forming","min_nodes":3,"max_nodes":3,"nodes":[{"host":"h",)"
      R"("phase":"idle","num_workers":8,"connected":true}]})");
  CHECK_THAT(picture_text(forming, 80, 24),
             Contains("round 0 · 1 of 3 nodes · failures") && Contains("RANKS 8"));
  CHECK_THAT(picture_text(state_of(job_json("a", 2, R"(,"phase":"stopping")")), 80, 24),
             Contains("2 of 2 nodes · 16 ranks"));
  const auto idle = [](int most) {
    return picture_text(
        state_of(job_json("a", 2,
                          concat(R"(,"rounds_without_progress":2,"no_progress_restarts":)", most))),
        120, 24);
  };
  CHECK_THAT(idle(3), Contains("rounds without a step 2/3"));
  CHECK_THAT(idle(0), !Contains("rounds without a step"));
}

TEST_CASE("top's picture: values that are all 0 are at the bottom, others that are alike above") {
  std::string job = job_json("nightly", 2);
  const std::string samples = R"("samples_per_second":1203.4)";
  job.replace(job.find(samples), samples.size(), R"("samples_per_second":0)");
  Known known = live(state_of(job));
  remember(known.history, known.state);
  View view{.has_list = false};
  CHECK_THAT(testing::text_of(screen_picture(known, view, 80, 24)),
             Contains("samples/s  0          ▁▁\n") && Contains("loss       2.31       ▄▄\n"));
}

TEST_CASE("top's picture: 40x10 characters show the most urgent first") {
  const State state = state_of(job_json("nightly", 2, "", [](int i, testing::SampleNode& node) {
    if (i == 1) node.connected = false;
  }));
  const std::string text = picture_text(state, 40, 10);
  CHECK_THAT(text, Contains("nightly  running") && Contains("no connection to node 1 (gpu001)") &&
                       Contains("? help"));
}

TEST_CASE("top's picture: a rank that lags behind and a lost node are named among 1,000 ranks") {
  const State state = large();
  for (const auto& [columns, rows] :
       std::vector<std::pair<std::size_t, std::size_t>>{{80, 24}, {200, 60}}) {
    CAPTURE(columns, rows);
    const std::string text = picture_text(state, columns, rows, {.has_list = false});
    CHECK_THAT(text,
               Contains("RANKS 1,000: 8 ! without a connection, 1 ▲ straggling, 991 running") &&
                   Contains("▲ rank 517 (node 64, gpu064) lags behind") &&
                   Contains("slowest: rank 517 (gpu064) 90.0 ms of its own") &&
                   Contains("no connection to node 100 (gpu100)"));
  }
  // Each rank has a cell if there is room, else each node.
  CHECK_THAT(picture_text(state, 80, 24, {.has_list = false}), Contains("each cell is a node"));
  CHECK_THAT(picture_text(state, 200, 60, {.has_list = false}),
             Contains("▃▃▃▃▃▲▃▃") && !Contains("each cell is a node"));
}

std::string cells(const Job& job, std::size_t columns, std::size_t rows) {
  return testing::text_of(job_lines(job, {}, kByRank, columns, rows, 100));
}

TEST_CASE("top's cells: they stand in groups by node, then close, then for one or several nodes") {
  const Job job = state_of(job_json("a", 4)).jobs.front();
  CHECK_THAT(cells(job, 80, 1), Contains("     0 ▃▃▃▃▃▃▃▃ ▃▃▃▃▃▃▃▃ ▃▃▃▃▃▃▃▃ ▃▃▃▃▃▃▃▃\n"));
  CHECK_THAT(cells(job, 40, 1), Contains("     0 " + [] {
               std::string all;
               for (int i = 0; i < 32; ++i) all += "▃";
               return all;
             }() + "\n"));
  CHECK_THAT(cells(job, 30, 1), Contains("     0 ▃▃▃▃\n") && Contains("each cell is a node"));
  const Job wide = state_of(job_json("a", 60)).jobs.front();
  CHECK_THAT(cells(wide, 40, 1), Contains("each cell is 2 nodes"));
}

TEST_CASE("top's cells: a node with millions of workers is drawn without a look at each") {
  const Job job =
      state_of(R"({"run_id":"a","phase":"running","nodes":[{"host":"h","phase":"running",)"
               R"("node_rank":0,"num_workers":16000000,"connected":true}]})")
          .jobs.front();
  CHECK_THAT(cells(job, 40, 2), Contains("RANKS 16,000,000: 16,000,000 running"));
}

TEST_CASE("top's picture: nodes in the order that was asked for") {
  const State state = state_of(job_json("a", 3, "", [](int i, testing::SampleNode& node) {
    node.own_us = [i](int) { return i == 1 ? 50'000 : 20'000; };
  }));
  const auto first_host = [&](NodeOrder order) {
    const std::string text = picture_text(state, 100, 60, {.has_list = false, .order = order});
    const std::string table = text.substr(text.find("NODES by"));
    return table.substr(table.find("gpu"), 6);
  };
  CHECK(first_host(kByRank) == "gpu000");
  CHECK(first_host(kByStepTime) == "gpu001");
  CHECK(first_host(kByGpu) == "gpu000");  // its GPUs are the least used
}

TEST_CASE("top's picture: a lost connection is said with its reason and the picture's time") {
  Known lost = live(state_of(job_json("nightly", 2)));
  lost.is_live = false;
  lost.why = "the peer closed the connection";
  View view;
  CHECK_THAT(testing::text_of(screen_picture(lost, view, 100, 24)),
             Contains("connection lost – showing state of 03:11:40 (the peer closed the "
                      "connection)") &&
                 Contains("nightly"));
  const Known none{.endpoint = "head:29400", .why = "connection refused"};
  CHECK_THAT(testing::text_of(screen_picture(none, view, 80, 24)),
             Contains("asks head:29400: connection refused") && Contains("nothing to show yet"));
}

TEST_CASE("top's picture: more than the screen has is scrolled, and the end of it is found") {
  const State state = large();
  View view{.has_list = false};
  screen_picture(live(state), view, 80, 24);
  REQUIRE(view.most_scroll > 100);
  view.scroll = view.most_scroll;
  CHECK_THAT(picture_text(state, 80, 24, view), Contains("gpu124"));
  view.scroll = 1'000'000;
  CHECK_THAT(picture_text(state, 80, 24, view), Contains("gpu124"));
}

TEST_CASE("top on paper: the list, and all of the chosen job without an end of rows") {
  const State state =
      state_of(job_json("nightly", 125), finished_json("old", 9) + "," + finished_json("done", 0));
  std::string text = testing::text_of(paper_picture(live(state), {}, 100));
  CHECK_THAT(text, Contains("JOBS 1 live, 2 over") && Contains("exit code 9") &&
                       Contains("gpu124") && !Contains("\x1b"));
  State cut = state;
  cut.num_hidden_live = 400;
  CHECK_THAT(testing::text_of(paper_picture(live(cut), {}, 100)),
             Contains("JOBS 401 live, 2 over; 400 not shown"));
  text = testing::text_of(paper_picture(live(state), {.wanted = "old"}, 100));
  CHECK_THAT(text, Contains("old  failed") && Contains("first: rank 1 (node 0, a) died"));
  CHECK_THAT(testing::text_of(paper_picture(live(state_of("")), {}, 100)), Contains("no jobs\n"));
}

TEST_CASE("top's picture: the daemon's own trouble is shown") {
  std::string frame = testing::state_frame(job_json("a", 1));
  frame.replace(frame.find(R"({"kept":true)"), 12, R"({"kept":false,"trouble":"disk full")");
  CHECK_THAT(picture_text(read_state(read_json(frame)), 80, 24),
             Contains("the journal is not kept: disk full"));
}

}  // namespace
}  // namespace ddprun::top
