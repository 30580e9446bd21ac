// SPDX-License-Identifier: Apache-2.0
// Questions about the stacks of a job's ranks, with agents that answer late, twice, for others, or
// too much.
#include "rendezvous/daemon/stack_pages.h"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "tests/support/catch.h"

namespace ddprun::rendezvous {
namespace {

using ddprun::test::Contains;
using membership::Tail;
using membership::TailRoute;
using namespace std::chrono_literals;

// A job of four ranks, of whose agents rank N's has connection 100 + N. Rank 3's is away.
struct Asking {
  explicit Asking(std::chrono::milliseconds limit = 1h, std::size_t text_bytes = 1 << 20) {
    StackPages::Options options;
    options.ask = [this](const std::string& run_id, const membership::TailQuestion& its) {
      CHECK((run_id == "job" || run_id == "other"));
      question = its;
      std::vector<TailRoute> routes;
      for (const int rank : its.global_ranks) {
        if (rank == 3) {
          routes.push_back({std::nullopt, "its node is away", "gpu1"});
        } else {
          routes.push_back({100 + static_cast<std::uint64_t>(rank), {}, "gpu0"});
        }
      }
      return routes;
    };
    options.num_ranks = [](const std::string& run_id) -> std::optional<int> {
      if (run_id == "waits") return 0;
      if (run_id == "huge") return 6'553'600;
      return run_id == "job" || run_id == "other" ? std::optional(4) : std::nullopt;
    };
    options.limit = limit;
    options.most = 2;
    options.text_bytes = text_bytes;
    pages = std::make_shared<StackPages>(io, std::move(options));
  }

  void ask(const std::string& query) {
    pages->ask("/v1/stacks" + query,
               [this](std::optional<HttpSession::Page> page) { answers.push_back(page.value()); });
  }
  // The agent of a rank says it of that; `connection`: another one does.
  void say(int rank, const std::string& line, std::optional<std::uint64_t> connection = {}) {
    const auto index =
        std::ranges::find(question.global_ranks, rank) - question.global_ranks.begin();
    pages->said(connection.value_or(100 + static_cast<std::uint64_t>(rank)),
                Tail{question.first_request + static_cast<std::uint64_t>(index), {line}, ""});
  }
  boost::json::value answer() {
    REQUIRE(answers.size() == 1);
    CHECK(answers[0].status == 200);
    const HttpSession::Page page = std::move(answers[0]);
    answers.clear();
    return boost::json::parse(page.body);
  }

  boost::asio::io_context io;
  membership::TailQuestion question;
  std::vector<HttpSession::Page> answers;
  std::shared_ptr<StackPages> pages;
};

TEST_CASE("StackPages: all ranks are asked, and the answer comes when all have answered") {
  Asking f;
  f.ask("?job=job");
  CHECK(f.question.global_ranks == std::vector<int>{0, 1, 2, 3});
  CHECK(f.question.kind == membership::TailKind::kStack);
  f.say(2, "two");
  f.say(0, "zero");
  CHECK(f.answers.empty());
  f.say(1, "one");
  const auto said = f.answer();
  CHECK(said.at("num_ranks") == 4);
  CHECK(said.at("ranks").at(1) ==
        boost::json::parse(R"({"rank":1,"host":"gpu0","lines":["one"],"note":""})"));
  CHECK(said.at("ranks").at(2).at("lines").at(0) == "two");
  CHECK(said.at("ranks").at(3) ==
        boost::json::parse(R"({"rank":3,"host":"gpu1","lines":[],"note":"its node is away"})"));
}

TEST_CASE("StackPages: a job with very many ranks is asked for some of them") {
  Asking f;
  for (const char* ranks : {"", "&ranks=0-16384"}) {
    f.ask(concat("?job=huge", ranks));
    CHECK_THAT(std::string(f.answer().at("problem").as_string()),
               Contains("at most 16384 of its 6553600 ranks"));
  }
}

TEST_CASE("StackPages: some ranks") {
  Asking f;
  f.ask("?job=job&ranks=2,3");
  CHECK(f.question.global_ranks == std::vector<int>{2, 3});
  f.say(2, "two");
  CHECK(f.answer().at("ranks").as_array().size() == 2);
}

TEST_CASE("StackPages: an agent that doesn't answer is named when the time is over") {
  Asking f(1ms);
  f.ask("?job=job&ranks=0-1");
  f.say(0, "zero");
  f.io.run();
  const auto said = f.answer();
  CHECK(said.at("ranks").at(0).at("lines").at(0) == "zero");
  CHECK(said.at("ranks").at(1).at("note") == "its agent has not answered for 0.001 s");
  f.say(1, "too late");
  CHECK(f.answers.empty());
}

TEST_CASE("StackPages: an agent tells of no rank but its own, and once") {
  Asking f;
  f.ask("?job=job&ranks=0-1");
  f.say(1, "a lie", 100);
  f.pages->said(100, Tail{f.question.first_request + 7, {"a lie"}, ""});
  f.pages->said(100, Tail{5, {"the answer to another question"}, ""});
  f.say(0, "zero");
  f.say(0, "changed");
  CHECK(f.answers.empty());
  f.say(1, "one");
  const auto said = f.answer();
  CHECK(said.at("ranks").at(0).at("lines").at(0) == "zero");
  CHECK(said.at("ranks").at(1).at("lines").at(0) == "one");
}

TEST_CASE("StackPages: the whole answer has a limit, ranks beyond it say so") {
  Asking f(1h, 100);
  f.ask("?job=job&ranks=0-1");
  f.say(1, std::string(90, 'x'));
  f.say(0, std::string(20, 'x'));
  const auto said = f.answer();
  CHECK(said.at("ranks").at(1).at("lines").as_array().size() == 1);
  CHECK(said.at("ranks").at(0).at("lines").as_array().empty());
  CHECK_THAT(std::string(said.at("ranks").at(0).at("note").as_string()), Contains("left out"));
}

TEST_CASE("StackPages: one question about a job at a time, and so many about different ones") {
  Asking f;
  f.ask("?job=job&ranks=0");
  const auto first = f.question;
  f.ask("?job=job&ranks=1");
  REQUIRE(f.answers.size() == 1);
  CHECK(f.answers[0].status == 503);
  CHECK_THAT(f.answers[0].body, Contains("somebody else asks"));
  CHECK(f.question.first_request == first.first_request);  // no agent was asked
  f.answers.clear();
  f.say(0, "zero");
  f.answer();
  f.ask("?job=job&ranks=1");
  f.say(1, "one");
  f.answer();
  f.pages->stop();
  CHECK(f.answers.empty());
}

TEST_CASE(
    "StackPages: a question without an answer has its reason, and names the ranks that there are") {
  Asking f;
  const auto problem = [&](const std::string& query) {
    f.ask(query);
    return std::string(f.answer().at("problem").as_string());
  };
  CHECK_THAT(problem("?jobs=1"), Contains("the question is none"));
  CHECK_THAT(problem("?job=%ff"), Contains("no job \"\xEF\xBF\xBD\""));
  CHECK(problem("?job=x") == "no job \"x\" runs here: see ddprunctl jobs");
  CHECK(problem("?job=waits") == "no round of waits has begun yet");
  CHECK(problem("?job=job&ranks=4") == "\"4\" are no ranks of job, which has 0 to 3");
  CHECK(problem("?job=job&ranks=1-x") == "\"1-x\" are no ranks of job, which has 0 to 3");
}

}  // namespace
}  // namespace ddprun::rendezvous
