// SPDX-License-Identifier: Apache-2.0
// Fetches a page of a rendezvous by HTTP, with the token's proof if it wants one. Blocking.
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
  bool wants_refusals = false;                // a 4xx answer is returned, not thrown
  std::shared_ptr<const Secret> token;        // null: no token
  security::TlsContext tls;                   // null: no TLS
  std::chrono::milliseconds timeout{10'000};  // for the whole exchange
  std::chrono::milliseconds limit{0};         // for all endpoints together; 0: none
  bool is_acted_on =
      false;               // another user's server on this machine is refused if it proves nothing
  bool is_patient = true;  // a refused connection is tried again until the timeout
  // Follows the message of a connection that is refused, and not tried again.
  std::string hint = {};
};

struct Page {
  std::string body;
  unsigned status = 200;
  bool is_standby = false;  // it has no such page: another ddprund leads
  std::string leader;       // of a standby: the leader's HOST:PORT; empty: not known
  std::string from;         // HOST:PORT that answered
  std::string policy = {};  // the Content-Security-Policy of a page for browsers
};

// Makes an Error(kProtocol): `from`, HOST:PORT, isn't a ddprund, or has another version, as `what`
// shows.
Error foreign_answer(const std::string& from, const std::string& what);

// Returns the beginning of a foreign answer for such a message: "\"<html>Bad gateway\"".
std::string quoted_begin(std::string_view words);

// Throws Error, one line. If there is no answer: kUnavailable, kTimeout or kConnectionLost. If the
// token differs or one side has none: kInvalidArgument. Else foreign_answer().
Page fetch(const FetchOptions& options);

// Ask the endpoints one after the other, and return the leader's page; a standby's status doesn't
// count. `options` needs no endpoint. Throw as fetch() does. If none leads, they throw
// Error(kUnavailable) with each answer. If there are several endpoints, one with a foreign answer,
// or with a page that is no JSON object, doesn't lead.
std::string fetch_from_leader(const FetchOptions& options, const std::vector<Endpoint>& endpoints);
Page ask_leader(FetchOptions options, const std::vector<Endpoint>& endpoints);

}  // namespace ddprun::pages
