// SPDX-License-Identifier: Apache-2.0
// Who looks at what ranks print: when their agents are asked, and who is told what.
#include "rendezvous/daemon/tails.h"

#include <string>
#include <vector>

#include "common/log.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous {
namespace {

using ddprun::test::Contains;
using membership::Tail;
using membership::TailRoute;
using namespace std::chrono_literals;

// Agents that answer when the test says so; connection 100 + rank. "away": there is none.
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
  // The frame that the watcher is given now; empty: none.
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
  CHECK(f.told(1).empty());  // no news
  f.pass(1s);
  f.answer({"step 1", "step 2"});
  CHECK_THAT(f.told(1), Contains(R"("lines":["step 1","step 2"])"));
  f.tails.look_away(1);
  CHECK_FALSE(f.tails.next_due());
  f.pass(1min);
  CHECK(f.asked.size() == 3);
}

TEST_CASE("Tails: who looks at the same rank shares its question, and hears what is known") {
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

TEST_CASE("Tails: why nobody can be asked is said, and it is tried again") {
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

TEST_CASE("Tails: who goes through many ranks has each asked, but not more than four a second") {
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

TEST_CASE("Tails: who looks away in between has no more asked") {
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

}  // namespace
}  // namespace ddprun::rendezvous
