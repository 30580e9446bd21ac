// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/proof.h"

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/secret_file.h"

namespace ddprun::security {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using ddprun::test::secret_of;

constexpr char kHttpToken[] = "correct horse battery staple";
constexpr HttpRequest kJobs{"GET", "/v1/jobs", ""};

struct HttpTalk {
  HttpDoor door{secret_of(kHttpToken)};
  HttpProof client{secret_of(kHttpToken)};
  Clock::time_point now{1000s};
};

TEST_CASE("HTTP proof: a request is admitted once, and its answer believed") {
  HttpTalk talk;
  const std::string proof = talk.client.answer(talk.door.challenge(talk.now), kJobs);
  const auto admitted = talk.door.check(proof, kJobs, talk.now + 1s);
  REQUIRE(admitted.admitted);
  const std::string seal = talk.door.seal(admitted, 200, "the page");
  CHECK_NOTHROW(talk.client.check(seal, 200, "the page"));
  CHECK_THROWS_WITH(talk.client.check(seal, 404, "the page"), Contains("without a proof"));
  CHECK_THROWS_WITH(talk.client.check(seal, 200, "another page"), Contains("without a proof"));
  CHECK_THROWS_AS(talk.client.check("", 200, "the page"), Error);
  CHECK_THROWS_AS(HttpProof(secret_of(kHttpToken)).check(seal, 200, "the page"),
                  Error);  // the proof of another request

  const auto again = talk.door.check(proof, kJobs, talk.now + 1s);
  CHECK_FALSE(again.admitted);
  CHECK(again.reason == "its proof was used before");
}

TEST_CASE("HTTP proof: it is for one method, one page and one TLS session") {
  HttpTalk talk;
  const std::string proof = talk.client.answer(talk.door.challenge(talk.now), kJobs);
  for (const HttpRequest& other : {HttpRequest{"GET", "/v1/other", ""},
                                   {"PUT", "/v1/jobs", ""},
                                   {"GET", "/v1/jobs?x", ""},
                                   {"GET", "/v1/jobs", "session"}}) {
    CHECK_FALSE(talk.door.check(proof, other, talk.now).admitted);
  }
  CHECK(talk.door.check(proof, kJobs, talk.now).admitted);  // the other attempts used nothing up
}

TEST_CASE("HTTP proof: the proof of a request with a body is for this body and method alone") {
  HttpTalk talk;
  constexpr HttpRequest kPost{"POST", "/v1/gangs", ""};
  const std::string proof = talk.client.answer(talk.door.challenge(talk.now), kPost, "run this");
  // It is refused under version 1, without a body's code, or with another code.
  CHECK_FALSE(talk.door.check(proof, {"GET", "/v1/gangs", ""}, talk.now).admitted);
  CHECK_FALSE(talk.door.check(proof, {"DELETE", "/v1/gangs", ""}, talk.now).admitted);
  const std::string of_get = HttpProof(secret_of(kHttpToken))
                                 .answer(talk.door.challenge(talk.now), {"GET", "/v1/gangs", ""});
  CHECK_FALSE(talk.door.check(of_get, kPost, talk.now).admitted);
  std::string changed = proof;
  char& digit = changed[changed.size() - 100];
  digit = digit == '0' ? '1' : '0';
  CHECK_FALSE(talk.door.check(changed, kPost, talk.now).admitted);
  const auto admitted = talk.door.check(proof, kPost, talk.now);
  REQUIRE(admitted.admitted);
  CHECK(talk.door.is_body(admitted, "run this"));
  CHECK_FALSE(talk.door.is_body(admitted, "run that"));
  CHECK_FALSE(talk.door.is_body(admitted, ""));
  CHECK_NOTHROW(talk.client.check(talk.door.seal(admitted, 201, "done"), 201, "done"));
  CHECK_FALSE(talk.door.check(proof, kPost, talk.now).admitted);  // a proof counts once
}

TEST_CASE("HTTP proof: a challenge ends, also for who has used it") {
  HttpTalk talk;
  const std::string proof = talk.client.answer(talk.door.challenge(talk.now), kJobs);
  CHECK_FALSE(talk.door.check(proof, kJobs, talk.now + HttpDoor::kNonceLife).admitted);
  CHECK(talk.door.check(proof, kJobs, talk.now + HttpDoor::kNonceLife - 1ms).admitted);
  CHECK_FALSE(talk.door.check(proof, kJobs, talk.now + HttpDoor::kNonceLife - 1ms).admitted);
  CHECK_FALSE(talk.door.check(proof, kJobs, talk.now + HttpDoor::kNonceLife).admitted);
}

TEST_CASE("HTTP proof: a challenge of another rendezvous, or a made-up one, is refused") {
  HttpTalk talk, other;
  const auto of_other = talk.client.answer(other.door.challenge(other.now), kJobs);
  CHECK_THAT(talk.door.check(of_other, kJobs, talk.now).reason, Contains("of another challenge"));
  std::string made_up = talk.door.challenge(talk.now);
  for (const std::size_t at : {std::size_t{14}, std::size_t{60}, made_up.size() - 1}) {
    std::string changed = made_up;
    changed[at] = changed[at] == '0' ? '1' : '0';
    CHECK_FALSE(talk.door.check(talk.client.answer(changed, kJobs), kJobs, talk.now).admitted);
  }
}

TEST_CASE("HTTP proof: another token and malformed headers are refused") {
  HttpTalk talk;
  HttpProof stranger(secret_of("another token of ours"));
  const auto wrong = stranger.answer(talk.door.challenge(talk.now), kJobs);
  CHECK_THAT(talk.door.check(wrong, kJobs, talk.now).reason, Contains("its token is another one"));
  CHECK(talk.door.check("", kJobs, talk.now).reason.empty());
  const auto good = talk.client.answer(talk.door.challenge(talk.now), kJobs);
  for (const std::string& bad : {std::string("Basic YTpi"), good + " ", good.substr(0, 100),
                                 std::string(good.size(), 'x')}) {
    CHECK_THAT(talk.door.check(bad, kJobs, talk.now).reason, Contains("no proof of the token"));
  }
  for (const char* bad : {"", "Basic realm=x", "DDPRUN-HMAC 1 ", "DDPRUN-HMAC 2 00"}) {
    CHECK_THROWS_WITH(talk.client.answer(bad, kJobs), Contains("can't be read"));
  }
}

TEST_CASE("HTTP proof: the table of used ones is bounded, and empties") {
  HttpTalk talk;
  std::size_t num_admitted = 0;
  for (std::size_t i = 0; i < HttpDoor::kMaxUsed + 10; ++i) {
    const auto proof = talk.client.answer(talk.door.challenge(talk.now), kJobs);
    num_admitted += talk.door.check(proof, kJobs, talk.now).admitted;
  }
  CHECK(num_admitted == HttpDoor::kMaxUsed);
  const Clock::time_point later = talk.now + HttpDoor::kNonceLife;
  CHECK(talk.door.check(talk.client.answer(talk.door.challenge(later), kJobs), kJobs, later)
            .admitted);
}

}  // namespace
}  // namespace ddprun::security
