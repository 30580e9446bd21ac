// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/link_connector.h"

#include "tests/support/catch.h"

namespace ddprun::membership {
namespace {

using Kind = ConnectFailure::Kind;
using namespace std::chrono_literals;

const ConnectFailure kRefused{Kind::kAway, "connection refused", true};

EndpointTurns turns_of(std::vector<std::string> hosts) {
  std::vector<Endpoint> endpoints;
  for (std::string& host : hosts) endpoints.push_back({std::move(host), 1});
  return EndpointTurns(std::move(endpoints));
}

TEST_CASE("EndpointTurns: a turn goes from the first one through the list, and so does the next") {
  EndpointTurns turns = turns_of({"a", "b", "c"});
  turns.begin(1);
  for (int turn = 0; turn < 3; ++turn) {
    CAPTURE(turn);
    CHECK(turns.current() == 1);
    CHECK_FALSE(turns.failed(kRefused));
    CHECK(turns.current() == 2);
    CHECK_FALSE(turns.failed(kRefused));
    CHECK(turns.current() == 0);
    CHECK(turns.failed(kRefused));
  }
  CHECK_FALSE(turns.failed(kRefused));
  turns.begin(0);  // this is in the middle of a turn
  CHECK(turns.current() == 0);
  CHECK_FALSE(turns.failed(kRefused));
  CHECK_FALSE(turns.failed(kRefused));
  CHECK(turns.failed(kRefused));
}

TEST_CASE(
    "EndpointTurns: each attempt at a single endpoint is a turn, and may take its whole time") {
  EndpointTurns turns = turns_of({"a"});
  turns.begin(0);
  for (int turn = 0; turn < 3; ++turn) {
    CHECK(turns.attempt_limit() == EndpointTurns::kLongestAttempt);
    CHECK(turns.failed(kRefused));
    CHECK(turns.current() == 0);
  }
  CHECK(turns.names() == "a:1");
}

TEST_CASE("EndpointTurns: attempts at several are short in the first turn, longer in the next") {
  EndpointTurns turns = turns_of({"a", "b"});
  turns.begin(0);
  for (const auto limit : {1000ms, 2000ms, 4000ms, 5000ms, 5000ms}) {
    CHECK(turns.attempt_limit() == limit);
    turns.failed(kRefused);
    CHECK(turns.attempt_limit() == limit);
    turns.failed(kRefused);
  }
  for (int i = 0; i < 1000; ++i) turns.failed(kRefused);
  CHECK(turns.attempt_limit() == EndpointTurns::kLongestAttempt);
  turns.begin(0);
  CHECK(turns.attempt_limit() == 1s);
}

TEST_CASE("EndpointTurns: the failure at a single endpoint is its last one") {
  EndpointTurns turns = turns_of({"a"});
  turns.begin(0);
  CHECK(turns.failures() == "there was no time for an attempt");
  turns.failed(kRefused);
  CHECK(turns.failures() == "connection refused");
  turns.failed({Kind::kStandby, ""});
  CHECK(turns.failures() == "it is a standby, and no leader was found");
  turns.failed({Kind::kStandby, "b:29400"});
  CHECK(turns.failures() ==
        "it is a standby, and no leader was found; it takes b:29400 for the leader");
  turns.failed({Kind::kNoRendezvous, "it answered HTTP 404"});
  CHECK(turns.failures() == "what listens there is not a ddprun rendezvous (it answered HTTP 404)");
  turns.failed({Kind::kUntrusted, "wants TLS"});
  CHECK(turns.failures() == "the rendezvous at a:1 wants TLS");
  turns.begin(0);
  CHECK(turns.failures() == "there was no time for an attempt");
}

TEST_CASE("EndpointTurns: the failure at several endpoints has the last one of each") {
  EndpointTurns turns = turns_of({"a", "b", "::1"});
  CHECK(turns.names() == "a:1, b:1 or [::1]:1");
  turns.begin(1);
  turns.failed({Kind::kStandby, ""});
  CHECK(turns.failures() == "a:1: not tried; b:1: it is a standby; [::1]:1: not tried");
  turns.failed({Kind::kUntrusted, "wants TLS"});
  turns.failed(kRefused);
  turns.failed({Kind::kStandby, "a:1"});
  CHECK(turns.failures() ==
        "a:1: connection refused; b:1: it is a standby of a:1; [::1]:1: it wants TLS");
}

}  // namespace
}  // namespace ddprun::membership
