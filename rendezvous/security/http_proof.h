// SPDX-License-Identifier: Apache-2.0
// The token's proof for single HTTP requests, each on a connection of its own (docs/security.md).
// Pure but for the drawing of random numbers.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/secret.h"
#include "rendezvous/security/proof.h"

namespace ddprun::security {

inline constexpr char kAnswerHeader[] = "DDPRUN-Proof";

// What a request asks for; the texts must outlive it. The proof of a GET is of version 1, that of
// all others of version 2, which covers a body, too.
struct HttpRequest {
  std::string_view method, target;
  std::string_view binding;  // of the TLS session; empty without TLS
};

// 16 random bytes, 8 of its end in ms, 16 that only the one who made it can make.
using HttpNonce = std::array<std::uint8_t, 40>;

// The rendezvous' side, for all its connections. It keeps nothing of requests without a proof: a
// challenge says by itself whether and when it was made here.
class HttpDoor {
 public:
  static constexpr std::chrono::milliseconds kNonceLife{30'000};
  // Nonces that were used, and are not over yet; more are refused.
  static constexpr std::size_t kMaxUsed = 65'536;

  explicit HttpDoor(std::shared_ptr<const Secret> token);

  // Of a 401 answer's WWW-Authenticate.
  std::string challenge(Clock::time_point now) const;

  struct Verdict {
    bool admitted = false;
    std::string reason;  // why not; empty where no proof was tried
    HttpNonce nonce{};   // of an admitted request, for seal()
    Nonce of_client{};
    Mac of_body{};  // of version 2: for is_body()
  };
  // `authorization`: that header, empty where there is none. Admits each nonce once. The body needs
  // not be there yet.
  Verdict check(std::string_view authorization, const HttpRequest& request, Clock::time_point now);
  // The request was admitted, with this body.
  bool is_body(const Verdict& admitted, std::string_view body) const;

  // The value of kAnswerHeader: `status` (200, …) and `body` are what this rendezvous says to that
  // request.
  std::string seal(const Verdict& admitted, unsigned status, std::string_view body) const;

 private:
  bool is_ours(const HttpNonce& nonce) const;
  Mac stamp(const HttpNonce& nonce) const;

  const std::shared_ptr<const Secret> token_;          // second owners: its other users
  const Nonce key_;                                    // of the stamps; of this process alone
  std::set<std::pair<std::int64_t, HttpNonce>> used_;  // by their ends
};

// The client's side of one request. Failures are an Error(kInvalidArgument) whose message completes
// "the rendezvous at HOST:PORT …".
class HttpProof {
 public:
  explicit HttpProof(std::shared_ptr<const Secret> token);

  // WWW-Authenticate of the 401 answer → Authorization of the second request. `body`: of one that
  // is no GET.
  std::string answer(std::string_view challenge, const HttpRequest& request,
                     std::string_view body = {});
  // kAnswerHeader of the answer, its status and its body: it comes from who has the token.
  void check(std::string_view seal, unsigned status, std::string_view body) const;

 private:
  const std::shared_ptr<const Secret> token_;  // second owners: likewise
  const Nonce own_;
  HttpNonce nonce_{};
};

}  // namespace ddprun::security
