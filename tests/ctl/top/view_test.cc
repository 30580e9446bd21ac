// SPDX-License-Identifier: Apache-2.0
// Keys change the view. A rank's output: its rank, the wish that is sent to the rendezvous, and the
// panel.
#include <curses.h>

#include <string>
#include <vector>

#include <boost/json/serialize.hpp>
#include "common/text.h"
#include "ctl/top/picture.h"
#include "tests/ctl/top/sample_state.h"
#include "tests/support/catch.h"

namespace ddprun::top {
namespace {

using ddprun::test::Contains;
using testing::finished_json;
using testing::job_json;
using testing::picture_text;
using testing::state_of;

// Presses these keys. Returns what the rendezvous is told then.
std::string typed(View& view, const State& state, const std::vector<int>& keys) {
  for (const int key : keys) CHECK(view.press(key, state));
  view.settle(state);
  return view.wish(state);
}
std::string typed(View& view, const State& state, const std::string& keys) {
  return typed(view, state, std::vector<int>(keys.begin(), keys.end()));
}

std::string wish(const std::string& job, int rank) {
  return concat(R"({"tail":{"run_id":")", job, R"(","rank":)", rank, "}}");
}

json::value tail_of(const std::vector<std::string>& lines, const std::string& note = "") {
  json::array said(lines.begin(), lines.end());
  return json::object{{"run_id", "a"}, {"rank", 0}, {"lines", said}, {"note", note}};
}

// The lower part of a picture of `rows` rows below the title of the output.
Lines panel(const State& state, View view, const json::value& tail, std::size_t columns) {
  Known known = testing::live(state);
  known.tail = tail;
  Lines texts;
  for (const std::string& line : screen_picture(known, view, columns, 24)) {
    CHECK(columns_of(line) <= columns);
    const std::string text = without_styles(line);
    if (!texts.empty() || text.starts_with("OUTPUT")) texts.push_back(text);
  }
  REQUIRE_FALSE(texts.empty());
  texts.pop_back();  // drops the row of keys
  return texts;
}

TEST_CASE("top's output: nothing is asked before it is shown, and no more once it is hidden") {
  const State state = state_of(job_json("a", 2));
  View view;
  CHECK(view.wish(state) == kLookAway);
  CHECK(typed(view, state, "]") == kLookAway);
  CHECK(typed(view, state, "l") == wish("a", 0));
  CHECK(typed(view, state, "l") == kLookAway);
  CHECK(typed(view, state, "l\x1b") == kLookAway);
}

TEST_CASE("top's output: keys go from rank to rank, and no further than there are") {
  const State state = state_of(job_json("a", 2));  // 16 ranks
  View view;
  CHECK(typed(view, state, "l[") == wish("a", 0));
  CHECK(typed(view, state, std::vector<int>{']', ']', KEY_RIGHT, KEY_LEFT}) == wish("a", 2));
  CHECK(typed(view, state, "14\r") == wish("a", 14));
  CHECK(typed(view, state, "]]]") == wish("a", 15));
  CHECK_FALSE(view.shows_list(state));  // Enter ended the number, and did not change the view
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

TEST_CASE("top's output: another job has another rank, and a job that is over is asked no more") {
  State state = state_of(job_json("a", 1) + "," + job_json("b", 1));
  View view;
  CHECK(typed(view, state, "l3\r") == wish("a", 3));
  CHECK(typed(view, state, "j") == wish("b", 0));
  CHECK(typed(view, state, "k7\r") == wish("a", 7));
  state = state_of(job_json("b", 1), finished_json("a", 1));
  view.wanted = "a";
  view.settle(state);
  CHECK(view.wish(state) == kLookAway);
  const json::value tail = tail_of({"Traceback"});
  REQUIRE(view.shows_output(state));
  const Lines shown = panel(state, view, tail, 80);
  CHECK(shown.front() == "OUTPUT of rank 7  the job is over; these lines are what was shown last");
  CHECK(shown.back() == "Traceback");
  CHECK(typed(view, state, "4\r") == kLookAway);
}

TEST_CASE("top's output: an older rendezvous isn't asked, which would end the connection") {
  State state = state_of(job_json("a", 1));
  state.daemon.as_object().erase("watch_output");
  View view;
  CHECK(typed(view, state, "l") == kLookAway);
  CHECK_THAT(picture_text(state, 80, 24, view),
             Contains("the rendezvous is of an older version (0.1.0), which doesn't tell what") &&
                 !Contains("asking"));
  state.daemon.as_object()["watch_output"] = false;
  CHECK(view.wish(state) == wish("a", 0));
}

TEST_CASE("top's output: the newest lines are at the bottom, each as a whole where there is room") {
  const State state = state_of(job_json("a", 1));
  View view;
  typed(view, state, "l");
  CHECK(panel(state, view, nullptr, 40).front() == "OUTPUT of rank 0  asking its agent …");
  json::value tail = tail_of({});
  CHECK(panel(state, view, tail, 60).front() == "OUTPUT of rank 0  it has printed nothing yet");
  const auto last = [&](std::size_t num, std::size_t columns) {
    const Lines all = panel(state, view, tail, columns);
    return Lines(all.end() - static_cast<std::ptrdiff_t>(num), all.end());
  };
  tail = tail_of({"one", "", "  two", "three is a very long one"});
  CHECK(last(5, 20) == Lines{"one", "", "  two", "three is a very long", "one"});
  tail = tail_of({"first", std::string(1'000, 'x'), "last"});
  CHECK(panel(state, view, tail, 20)[1] == std::string(20, 'x'));
  CHECK(last(1, 20) == Lines{"last"});
  tail = tail_of({"last"}, "stdout goes to ddprun's own, and is not kept");
  CHECK(panel(state, view, tail, 24)[0] == "OUTPUT of rank 0");
  CHECK(panel(state, view, tail, 24)[1] == "stdout goes to ddprun's");
  CHECK(panel(state, view, tail, 24)[2] == "own, and is not kept");
  CHECK(last(1, 24) == Lines{"last"});
}

TEST_CASE("top's output: hostile output of a rank is made harmless, and cut to what fits") {
  const State state = state_of(job_json("a", 2) + "," + job_json("b", 2));
  const std::string evil =
      std::string("\x1b[2J\xe2\x80\xae\x9b\r\ttext ") + std::string(2'000, 'x');
  json::value tail = read_json(
      json::serialize(tail_of({"\x1b[2J\xe2\x80\xae" + std::string(3'000, 'y')}, "\x1b[2J")));
  tail.at("lines").as_array().emplace_back(harmless(evil));
  tail.at("lines").as_array().emplace_back(7);
  Known known = testing::live(state);
  known.tail = tail;
  for (const auto& [columns, rows] : std::vector<std::pair<std::size_t, std::size_t>>{
           {40, 10}, {80, 24}, {200, 60}, {20, 4}, {7, 2}, {1, 1}, {133, 11}}) {
    for (const bool has_list : {false, true}) {
      View view{.has_list = has_list};
      typed(view, state, "l");
      const Lines lines = screen_picture(known, view, columns, rows);
      CHECK(lines.size() == rows);
      for (const std::string& line : lines) {
        const std::string text = without_styles(line);
        CHECK(columns_of(line) <= columns);
        CHECK(harmless(text) == text);
      }
      if (columns >= 40) CHECK_THAT(testing::text_of(lines), Contains("OUTPUT of rank 0"));
    }
  }
}

TEST_CASE("top's view: keys choose a job, and it stays chosen as others come and go") {
  View view;
  State state = state_of(job_json("a", 1) + "," + job_json("b", 1), finished_json("old", 9));
  REQUIRE(state.jobs.size() == 3);
  CHECK(view.shows_list(state));
  CHECK(view.press(KEY_DOWN, state));
  CHECK(view.chosen(state) == &state.jobs[1]);
  state = state_of(job_json("new", 1) + "," + job_json("a", 1) + "," + job_json("b", 1));
  CHECK(view.chosen(state) == &state.jobs[2]);
  state = state_of(job_json("a", 1), finished_json("x", 0) + "," + finished_json("b", 0));
  CHECK(view.chosen(state)->key().starts_with("b\n"));
  CHECK(view.press('G', state));
  CHECK(view.chosen(state)->key().starts_with("x\n"));
  CHECK(view.press('\r', state));
  CHECK_FALSE(view.shows_list(state));
  view.most_scroll = 1;
  CHECK(view.press(KEY_DOWN, state));
  CHECK(view.press(KEY_DOWN, state));
  CHECK(view.scroll == 1);
  CHECK(view.press('n', state));
  CHECK(view.order == kByCpu);
  CHECK_FALSE(view.press('q', state));
}

}  // namespace
}  // namespace ddprun::top
