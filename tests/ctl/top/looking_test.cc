// SPDX-License-Identifier: Apache-2.0
// What a rank prints: which rank is looked at, what the rendezvous is told, and what is shown.
#include "ctl/top/looking.h"

#include <string>
#include <vector>

#include "common/error.h"
#include "ctl/top/output_panel.h"
#include "tests/ctl/top/sample_state.h"
#include "tests/support/catch.h"

namespace ddprun::top {
namespace {

using ddprun::test::Contains;
using testing::finished_json;
using testing::job_json;
using testing::state_of;

// Types it; what the rendezvous is told then.
std::string typed(View& view, const State& state, const std::string& bytes) {
  KeyReader reader;
  for (const Key key : reader.take(bytes)) CHECK(press(view, key, state, {}));
  return tail_wish(view, state);
}

std::string wish(const std::string& job, int rank) {
  return concat(R"({"tail":{"run_id":")", job, R"(","rank":)", rank, "}}");
}

Tail tail_of(std::int64_t rank, std::vector<std::string> lines, std::string note = "") {
  return {"a", rank, std::move(lines), std::move(note)};
}

std::vector<std::string> panel(const State& state, const View& view, const Tail* tail,
                               std::size_t columns, std::size_t rows) {
  std::vector<std::string> texts;
  for (const Line& line : output_lines(state, view, tail, columns, rows)) {
    CHECK(line.columns() <= columns);
    texts.push_back(line.text());
  }
  CHECK(texts.size() == rows);
  return texts;
}

TEST_CASE("top's output: nothing is asked before it is shown, and no more once it is hidden") {
  const State state = state_of(job_json("a", 2));
  View view;
  CHECK(tail_wish(view, state) == kLookAway);
  CHECK(typed(view, state, "]") == kLookAway);
  CHECK(typed(view, state, "l") == wish("a", 0));
  CHECK(typed(view, state, "l") == kLookAway);
  CHECK(typed(view, state, "l\x1b") == kLookAway);
}

TEST_CASE("top's output: keys go from rank to rank, and no further than there are") {
  const State state = state_of(job_json("a", 2));  // 16 ranks
  View view;
  CHECK(typed(view, state, "l[") == wish("a", 0));
  CHECK(typed(view, state, "]]\x1b[C\x1b[D") == wish("a", 2));
  CHECK(typed(view, state, "14\r") == wish("a", 14));
  CHECK(typed(view, state, "]]]") == wish("a", 15));
  CHECK(view.focus_on(state) == Focus::kJob);  // Enter was the number's
  View hidden;
  CHECK(typed(hidden, state, "1") == kLookAway);
  CHECK(picture_text(state, 80, 24, hidden).find("Enter output of rank 1  Esc back") !=
        std::string::npos);
  CHECK(typed(hidden, state,
              "2\x7f\x7f"
              "5\r") == wish("a", 5));
  CHECK(typed(hidden, state, "7\x1b") == wish("a", 5));
  CHECK(typed(hidden, state, "7n8\r") == wish("a", 8));
  CHECK(typed(hidden, state, std::string(40, '9') + "\r") == wish("a", 999'999'999));
}

TEST_CASE("top's output: the rank that failed, hangs or lags behind is the first") {
  const auto first = [](const std::string& more) {
    const State state = state_of(job_json("a", 2, more));
    View view;
    return typed(view, state, "l");
  };
  const std::string slow = R"(,"stragglers":["rank 5 (node 0, b) lags behind"])";
  CHECK(first(slow) == wish("a", 5));
  CHECK(
      first(slow + R"(,"hang":{"round":2,"text":"2 ranks hang","lines":["all","rank 9 waits"]})") ==
      wish("a", 9));
  CHECK(first(R"(,"hang":{"round":1,"text":"rank 9 hangs","lines":[]})") == wish("a", 0));
  CHECK(first(slow + R"(,"reason":"rank 3 (node 0, b) failed")") == wish("a", 3));
}

TEST_CASE(
    "top's output: with another job goes another rank, and of one that is over no more is asked") {
  State state = state_of(job_json("a", 1) + "," + job_json("b", 1));
  View view;
  CHECK(typed(view, state, "l3\r") == wish("a", 3));
  CHECK(typed(view, state, "j") == wish("b", 0));
  CHECK(typed(view, state, "k7\r") == wish("a", 7));
  state = state_of(job_json("b", 1), finished_json("a", 1));
  view.wanted = "a";
  settle(view, state);
  CHECK(tail_wish(view, state) == kLookAway);
  const Tail tail = tail_of(7, {"Traceback"});
  REQUIRE(has_output_panel(state, view));
  const auto shown = panel(state, view, &tail, 80, 3);
  CHECK(shown[0] == "OUTPUT of rank 7  the job is over; these lines are what was shown last");
  CHECK(shown[2] == "Traceback");
  CHECK(typed(view, state, "4\r") == kLookAway);
}

TEST_CASE("top's output: an older rendezvous isn't asked, which would end the connection") {
  State state = state_of(job_json("a", 1));
  state.daemon.knows_tails = false;
  View view;
  CHECK(typed(view, state, "l") == kLookAway);
  CHECK_THAT(picture_text(state, 80, 24, view),
             Contains("the rendezvous is of an older version (0.1.0), which doesn't tell what") &&
                 !Contains("asking"));
  CHECK(read_message(R"({"type":"status","status":{"version":"1","embedded":false}})")
            .state.daemon.knows_tails == false);
  CHECK(read_message(
            R"({"type":"status","status":{"version":"1","embedded":false,"watch_output":false}})")
            .state.daemon.knows_tails);
}

TEST_CASE("top's output: the newest lines are at the bottom, each as a whole where there is room") {
  const State state = state_of(job_json("a", 1));
  View view;
  typed(view, state, "l");
  CHECK(panel(state, view, nullptr, 40, 2)[0] == "OUTPUT of rank 0  asking its agent …");
  Tail tail = tail_of(0, {});
  CHECK(panel(state, view, &tail, 60, 1)[0] == "OUTPUT of rank 0  it has printed nothing yet");
  tail.lines = {"one", "", "  two", "three is a long one"};
  CHECK(panel(state, view, &tail, 18, 7) == std::vector<std::string>{"OUTPUT of rank 0", "", "one",
                                                                     "", "  two", "three is a long",
                                                                     "one"});
  CHECK(panel(state, view, &tail, 18, 3) ==
        std::vector<std::string>{"OUTPUT of rank 0", "three is a long", "one"});
  tail.note = "stdout goes to ddprun's own, and is not kept";
  const auto noted = panel(state, view, &tail, 24, 5);
  CHECK(noted == std::vector<std::string>{"OUTPUT of rank 0", "stdout goes to ddprun's",
                                          "own, and is not kept", "  two", "three is a long one"});
}

TEST_CASE("top's output: what a rank prints is hostile, and there is no more of it than fits") {
  const State state = state_of(job_json("a", 2) + "," + job_json("b", 2));
  const std::string evil =
      std::string("\x1b[2J\xe2\x80\xae\x9b\r\ttext ") + std::string(2'000, 'x');
  Message message = read_message(
      concat(R"({"type":"tail","run_id":"a","rank":0,"note":"\u001b[2J","lines":["\u001b[2J\u202e)",
             std::string(3'000, 'y'), R"("]})"));
  REQUIRE(message.kind == Message::Kind::kTail);
  CHECK(message.tail.lines.at(0).size() == 1'024);
  std::string many;
  for (int i = 0; i < 500; ++i) many += concat(i == 0 ? "" : ",", '"', i, '"');
  CHECK(read_message(concat(R"({"type":"tail","lines":[)", many, "]}")).tail.lines.front() ==
        "436");
  CHECK_THROWS_AS(read_message(R"({"type":"tail","lines":[1]})"), Error);
  message.tail.lines.push_back(evil);
  History history;
  history.take(state);
  for (const auto& [columns, rows] : std::vector<std::pair<std::size_t, std::size_t>>{
           {40, 10}, {80, 24}, {200, 60}, {20, 4}, {7, 2}, {1, 1}, {133, 11}}) {
    for (const Focus focus : {Focus::kJob, Focus::kList}) {
      View view{.focus = focus};
      typed(view, state, "l");
      const Picture picture = screen_picture({&state, &history, 0, &message.tail}, view,
                                             testing::live(), columns, rows);
      CHECK(picture.lines.size() == rows);
      for (const Line& line : picture.lines) {
        CHECK(line.columns() <= columns);
        CHECK(harmless(line.text()) == line.text());
      }
      if (columns >= 40) CHECK_THAT(testing::text_of(picture.lines), Contains("OUTPUT of rank 0"));
    }
  }
}

}  // namespace
}  // namespace ddprun::top
