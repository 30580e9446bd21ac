// SPDX-License-Identifier: Apache-2.0
// Proof that both ends of a connection have the same token, which itself is never sent
// (docs/internals/security.md has the conversation). Pure but for the drawing of nonces.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/secret.h"

namespace ddprun::security {

// HMAC-SHA256 that proves a secret. is_same() compares: the time of "==" tells how much is right.
struct Mac : std::array<std::uint8_t, 32> {
  template <typename Other>
  bool operator==(const Other&) const = delete;
  template <typename Other>
  bool operator<=>(const Other&) const = delete;
};

using Nonce = std::array<std::uint8_t, 32>;

inline constexpr char kChallengeHeader[] = "DDPRUN-Challenge";
// In the answer to a request that came without TLS where it has to be.
inline constexpr char kTlsHeader[] = "DDPRUN-Wants-TLS";
// In a refusal by a rendezvous that serves one user's programs alone.
inline constexpr char kOtherUserHeader[] = "DDPRUN-Other-User";
inline constexpr char kProofVersion[] = "1";
// For a frame before the proof; a refusal is the longest.
inline constexpr std::size_t kMaxProofBytes = 1024;

enum class Side { kAgent, kRendezvous };

// How `side` shows that it has `token` on this connection. `binding`: of its TLS session, or empty.
Mac prove(const Secret& token, Side side, const Nonce& of_rendezvous, const Nonce& of_agent,
          std::string_view binding);

// In a time that doesn't depend on the content.
bool is_same(const Mac& one, const Mac& other);

// The agent's side of one connection. Every failure is an Error(kInvalidArgument) whose message
// completes "the rendezvous at HOST:PORT …".
class AgentProof {
 public:
  AgentProof(std::shared_ptr<const Secret> token, std::string binding);

  // The value of kChallengeHeader → the frame to send.
  std::string answer(std::string_view challenge);
  // The frame that came back: the rendezvous has the token, or this throws.
  void check(std::string_view frame) const;

 private:
  const std::shared_ptr<const Secret> token_;  // second owners: the other connections
  const std::string binding_;
  const Nonce nonce_;
  Nonce of_rendezvous_{};
};

// The rendezvous' side of one connection.
class RendezvousProof {
 public:
  RendezvousProof(std::shared_ptr<const Secret> token, std::string binding);

  // The value of kChallengeHeader, of this connection alone.
  std::string challenge() const;

  struct Verdict {
    bool admitted = false;
    std::string reply;   // the frame to send back in either case
    std::string reason;  // for the log, where it isn't admitted
  };
  // The one frame that the agent may send before it is admitted.
  Verdict check(std::string_view frame) const;

 private:
  const std::shared_ptr<const Secret> token_;  // second owners: likewise
  const std::string binding_;
  const Nonce nonce_;
};

// Whether an Authorization header is "Bearer SECRET" (RFC 6750); takes as long whatever it holds.
bool is_bearer(std::string_view authorization, const Secret& secret);

// HMAC-SHA256. For rendezvous/security alone.
Mac hmac_sha256(std::span<const std::uint8_t> key, std::string_view text);

// A stranger's text for printing: cut, all but ASCII's printable characters as "?".
std::string shown(std::string_view text);

// The token's proof for single HTTP requests, each on a connection of its own
// (docs/internals/security.md). Pure but for the drawing of random numbers.
inline constexpr char kAnswerHeader[] = "DDPRUN-Proof";

// The request that a proof is for; the texts must outlive it. A GET's proof is of version 1, any
// other's of version 2, which covers a body, too.
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

  // For WWW-Authenticate of a 401 answer.
  std::string challenge(Clock::time_point now) const;

  struct Verdict {
    bool admitted = false;
    std::string reason;  // why not; empty where no proof was tried
    HttpNonce nonce{};   // of an admitted request, for seal()
    Nonce of_client{};
    Mac of_body{};  // of version 2: for is_body()
  };
  // `authorization`: that header, or empty. Admits each nonce once. The body may come later.
  Verdict check(std::string_view authorization, const HttpRequest& request, Clock::time_point now);
  // The request was admitted, with this body.
  bool is_body(const Verdict& admitted, std::string_view body) const;

  // The value of kAnswerHeader: `status` (200, …) and `body` are this rendezvous' answer.
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

  // WWW-Authenticate of the 401 answer → Authorization of the second request. `body`: not of a GET.
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
