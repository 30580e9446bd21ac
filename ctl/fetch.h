// SPDX-License-Identifier: Apache-2.0
// One page of a rendezvous' HTTP, with the token's proof where it wants one. Blocking.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/endpoint.h"
#include "common/secret.h"
#include "rendezvous/security/wire.h"

namespace ddprun::ctl {

struct FetchOptions {
  Endpoint endpoint;
  std::string target;                         // "/v1/jobs"
  std::shared_ptr<const Secret> token;        // null: none
  security::TlsContext tls;                   // likewise
  std::chrono::milliseconds timeout{10'000};  // for all of it
};

// The page's body. Throws Error, one line: kUnavailable, kTimeout or kConnectionLost where nobody
// answers, kInvalidArgument where the token differs or one side has none, kProtocol for any other
// answer.
std::string fetch(const FetchOptions& options);

}  // namespace ddprun::ctl
