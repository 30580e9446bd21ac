// SPDX-License-Identifier: Apache-2.0
// One page of a rendezvous' HTTP, with the token's proof where it wants one. Blocking.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/endpoint.h"
#include "common/error.h"
#include "common/secret.h"
#include "rendezvous/security/wire.h"

namespace ddprun::pages {

struct FetchOptions {
  Endpoint endpoint;
  std::string target;                         // "/v1/jobs"
  std::string method = "GET", body;           // GET has no body
  bool wants_refusals = false;                // an answer of 4xx is returned, with its text
  std::shared_ptr<const Secret> token;        // null: none
  security::TlsContext tls;                   // likewise
  std::chrono::milliseconds timeout{10'000};  // for all of it
  std::chrono::milliseconds limit{0};         // of several endpoints: for all; 0: only that of each
  bool is_patient = true;  // a connection that is refused is tried again meanwhile
};

struct Page {
  std::string body;
  unsigned status = 200;
  bool is_standby = false;  // it has no such page: one of several, and another one leads
  std::string leader;       // then: HOST:PORT as far as it knows; empty: it doesn't
  std::string from;         // who answered: HOST:PORT
  std::string policy = {};  // its Content-Security-Policy, of a page for browsers
};

// Error(kProtocol): `from`, HOST:PORT, is somebody else, or of another version, as `what` shows.
Error foreign_answer(const std::string& from, const std::string& what);

// The beginning of somebody else's words, for such a line: "\"<html>Bad gateway\"".
std::string quoted_begin(std::string_view words);

// Throws Error, one line: kUnavailable, kTimeout or kConnectionLost where nobody answers,
// kInvalidArgument where the token differs or one side has none, else foreign_answer().
Page fetch(const FetchOptions& options);

// Asks the endpoints one after the other, and returns the leader's page; skips a standby's status.
// `options` without an endpoint. Throws as fetch(). If none leads: Error(kUnavailable) with what
// each said. One of several with a foreign answer, or a page that is no JSON object, doesn't lead.
std::string fetch_from_leader(const FetchOptions& options, const std::vector<Endpoint>& endpoints);
Page ask_leader(FetchOptions options, const std::vector<Endpoint>& endpoints);

}  // namespace ddprun::pages
