// SPDX-License-Identifier: Apache-2.0
// Pages that look at what ranks print. When are their agents asked, and what are the pages told?
#include "rendezvous/daemon/tails.h"

#include <chrono>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/text.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous {
namespace {

using ddprun::test::Contains;
using membership::Tail;
using membership::TailRoute;
using namespace std::chrono_literals;

// Agents that answer when the test says so, on connection 100 + rank. There is none of the job
// "away".
struct Looking {
  void look(Tails::Watcher watcher, int rank, const std::string& job = "job") {
    tails.look(watcher, {job, rank}, now);
    tails.step(now);
  }
  void pass(std::chrono::milliseconds time) {
    const auto until = now + time;
    while (tails.next_due() && *tails.next_due() <= until) {
      now = std::max(now, *tails.next_due());
      tails.step(now);
    }
    now = until;
  }
  void answer(const std::vector<std::string>& lines, const std::string& note = "") {
    tails.said(100 + static_cast<std::uint64_t>(asked.back()), {last_request, lines, note});
  }
  // The watcher's next frame; empty: there is none.
  std::string told(Tails::Watcher watcher) {
    const std::string* news = tails.news(watcher);
    if (news == nullptr) return {};
    std::string frame = *news;
    tails.given(watcher);
    return frame;
  }

  Clock::time_point now{1h};
  std::vector<int> asked;
  std::uint64_t last_request = 0;
  Tails tails{{}, [this](const Tails::Rank& rank, std::uint64_t request) -> TailRoute {
                if (rank.run_id == "away") return {std::nullopt, "its node is away"};
                asked.push_back(rank.global_rank);
                last_request = request;
                return {100 + static_cast<std::uint64_t>(rank.global_rank), {}};
              }};
};

TEST_CASE("Tails: a rank is asked at once, then each second, while somebody looks") {
  Looking f;
  CHECK_FALSE(f.tails.next_due());
  f.look(1, 3);
  CHECK(f.asked == std::vector<int>{3});
  CHECK(f.told(1).empty());
  f.answer({"step 1"});
  CHECK(f.told(1) == R"({"type":"tail","run_id":"job","rank":3,"lines":["step 1"],"note":""})");
  CHECK(f.told(1).empty());
  f.pass(999ms);
  CHECK(f.asked.size() == 1);
  f.pass(1ms);
  CHECK(f.asked.size() == 2);
  f.answer({"step 1"});
  CHECK(f.told(1).empty());  // there is nothing new
  f.pass(1s);
  f.answer({"step 1", "step 2"});
  CHECK_THAT(f.told(1), Contains(R"("lines":["step 1","step 2"])"));
  f.tails.look_away(1);
  CHECK_FALSE(f.tails.next_due());
  f.pass(1min);
  CHECK(f.asked.size() == 3);
}

TEST_CASE("Tails: viewers of the same rank share a question, and hear what is known") {
  Looking f;
  f.look(1, 3);
  f.answer({"a line"});
  f.told(1);
  f.look(2, 3);
  CHECK(f.asked.size() == 1);
  CHECK_THAT(f.told(2), Contains("a line"));
  f.tails.look_away(1);
  f.pass(1s);
  CHECK(f.asked.size() == 2);
  f.tails.gone(2);
  CHECK_FALSE(f.tails.next_due());
}

TEST_CASE("Tails: no answer is said once, with the lines that were known, and it is asked anew") {
  Looking f;
  f.look(1, 3);
  f.answer({"a line"});
  f.told(1);
  f.pass(3'999ms);
  CHECK(f.asked.size() == 2);
  const std::uint64_t late = f.last_request;
  f.pass(1ms);
  CHECK_THAT(f.told(1),
             Contains(R"("lines":["a line"],"note":"its agent has not answered for 3 s")"));
  CHECK(f.asked.size() == 3);
  f.tails.said(103, {late, {"too late"}, ""});
  CHECK(f.told(1).empty());
  f.answer({"another line"});
  CHECK_THAT(f.told(1), Contains(R"("lines":["another line"],"note":"")"));
}

TEST_CASE("Tails: the reason why nobody can be asked is said, and it is tried again") {
  Looking f;
  f.look(1, 3, "away");
  CHECK_THAT(f.told(1), Contains(R"("rank":3,"lines":[],"note":"its node is away")"));
  CHECK(f.tails.next_due() == f.now + 1s);
  f.pass(10s);
  CHECK(f.told(1).empty());
}

TEST_CASE("Tails: another agent's answer, or one to no question, changes nothing") {
  Looking f;
  f.look(1, 3);
  f.tails.said(104, {f.last_request, {"forged"}, ""});
  f.tails.said(103, {f.last_request + 1, {"forged"}, ""});
  CHECK(f.told(1).empty());
  f.answer({"true"});
  f.tails.said(103, {f.last_request, {"said twice"}, ""});
  CHECK_THAT(f.told(1), Contains("true"));
  CHECK(f.told(1).empty());
}

TEST_CASE("Tails: a viewer of many ranks asks no more than four questions a second") {
  Looking f;
  for (int rank = 0; rank < 1'000; ++rank) f.look(1, rank);
  CHECK(f.asked == std::vector<int>{0});
  f.pass(250ms);
  CHECK(f.asked == std::vector<int>{0, 999});
  for (int i = 0; i < 100; ++i) {
    f.look(1, i);
    f.pass(10ms);
  }
  CHECK(f.asked.size() <= 2 + 4);
}

TEST_CASE("Tails: a viewer that looks away in between asks no more") {
  Looking f;
  for (int rank = 0; rank < 1'000; ++rank) {
    f.look(1, rank);
    f.tails.look_away(1);
  }
  CHECK(f.asked == std::vector<int>{0});
  CHECK_FALSE(f.tails.next_due());
  CHECK(f.told(1).empty());
}

TEST_CASE("Tails: looking at the same rank again is no news") {
  Looking f;
  f.look(1, 3);
  f.answer({"a line"});
  CHECK_FALSE(f.told(1).empty());
  f.look(1, 3);
  CHECK(f.told(1).empty());
  CHECK(f.asked.size() == 1);
}

// Pages look and look away at random. Answers come late, twice, from another agent or to no
// question.
void play(std::uint64_t seed) {
  constexpr int kRanks = 4;
  constexpr Tails::Watcher kWatchers = 3;
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t most) { return random() % most; };
  std::vector<std::pair<int, std::uint64_t>> questions;  // rank, request
  Tails tails({}, [&](const Tails::Rank& rank, std::uint64_t request) -> TailRoute {
    questions.emplace_back(rank.global_rank, request);
    return {100 + static_cast<std::uint64_t>(rank.global_rank), {}};
  });
  std::map<Tails::Watcher, int> looked_at;
  Clock::time_point now{1h};
  for (int i = 0; i < 200; ++i) {
    const Tails::Watcher watcher = 1 + below(kWatchers);
    const auto dice = below(10);
    if (dice < 3) {
      looked_at[watcher] = static_cast<int>(below(kRanks));
      tails.look(watcher, {"job", looked_at[watcher]}, now);
    } else if (dice == 3) {
      looked_at.erase(watcher);
      below(2) == 0 ? tails.look_away(watcher) : tails.gone(watcher);
    } else if (dice < 7 && !questions.empty()) {
      const auto [rank, request] = questions[below(questions.size())];
      tails.said(100 + static_cast<std::uint64_t>(rank), {request, {concat("of rank ", rank)}, ""});
    } else if (dice == 7) {  // another agent's answer, with a number that was asked
      const std::uint64_t request = questions.empty() ? 1 : questions.back().second;
      const int rank = questions.empty() ? 0 : questions.back().first;
      tails.said(101 + static_cast<std::uint64_t>(rank), {request, {"forged"}, ""});
    } else {
      now += std::chrono::milliseconds(below(2'000));
    }
    tails.step(now);
    for (Tails::Watcher each = 1; each <= kWatchers; ++each) {
      const std::string* news = tails.news(each);
      if (news == nullptr) continue;
      REQUIRE(looked_at.count(each) == 1);
      const int rank = looked_at[each];
      CHECK_THAT(*news, Contains(concat("\"rank\":", rank, ",")) && !Contains("forged"));
      if (news->find("\"lines\":[]") == std::string::npos) {
        CHECK_THAT(*news, Contains(concat("[\"of rank ", rank, "\"]")));
      }
      tails.given(each);
    }
  }
  for (Tails::Watcher each = 1; each <= kWatchers; ++each) tails.gone(each);
  CHECK_FALSE(tails.next_due());
}

TEST_CASE("Tails: random looks and answers show nobody another rank's lines") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    play(seed);
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
