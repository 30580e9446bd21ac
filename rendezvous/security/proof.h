// SPDX-License-Identifier: Apache-2.0
// Proves that both ends of a connection have the same token, which itself is never sent.
// docs/internals/security.md has the exchange. Pure, except for random nonces.
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

// An HMAC-SHA256 that proves a secret. Only is_same() compares it: the time of "==" would tell how
// many bytes are right.
struct Mac : std::array<std::uint8_t, 32> {
  template <typename Other>
  bool operator==(const Other&) const = delete;
  template <typename Other>
  bool operator<=>(const Other&) const = delete;
};

using Nonce = std::array<std::uint8_t, 32>;

inline constexpr char kChallengeHeader[] = "DDPRUN-Challenge";
// In the answer to a request without TLS if the server requires TLS.
inline constexpr char kTlsHeader[] = "DDPRUN-Wants-TLS";
// In the refusal by a rendezvous that serves only one user's programs.
inline constexpr char kOtherUserHeader[] = "DDPRUN-Other-User";
inline constexpr char kProofVersion[] = "1";
// The limit of a frame before the proof is complete; a refusal is the longest.
inline constexpr std::size_t kMaxProofBytes = 1024;

enum class Side { kAgent, kRendezvous };

// Returns the proof that `side` has `token` on this connection. `binding` is the TLS session's, or
// empty.
Mac prove(const Secret& token, Side side, const Nonce& of_rendezvous, const Nonce& of_agent,
          std::string_view binding);

// Compares in a time that doesn't depend on the content.
bool is_same(const Mac& one, const Mac& other);

// The agent's side of one connection. Every failure is an Error(kInvalidArgument) whose message
// completes "the rendezvous at HOST:PORT …".
class AgentProof {
 public:
  AgentProof(std::shared_ptr<const Secret> token, std::string binding);

  // Returns the frame to send; `challenge` is kChallengeHeader's value.
  std::string answer(std::string_view challenge);
  // Checks the frame that came back. Throws unless it proves that the rendezvous has the token.
  void check(std::string_view frame) const;

 private:
  const std::shared_ptr<const Secret> token_;  // shared with other connections
  const std::string binding_;
  const Nonce nonce_;
  Nonce of_rendezvous_{};
};

// The rendezvous' side of one connection.
class RendezvousProof {
 public:
  RendezvousProof(std::shared_ptr<const Secret> token, std::string binding);

  // Returns kChallengeHeader's value for this connection.
  std::string challenge() const;

  struct Verdict {
    bool admitted = false;
    std::string reply;   // the frame to send back, admitted or not
    std::string reason;  // for the log, if it isn't admitted
  };
  // Checks the only frame that the agent may send before it is admitted.
  Verdict check(std::string_view frame) const;

 private:
  const std::shared_ptr<const Secret> token_;  // shared with its other users
  const std::string binding_;
  const Nonce nonce_;
};

// Returns whether an Authorization header is "Bearer SECRET" (RFC 6750), in a time that doesn't
// depend on the secret's content.
bool is_bearer(std::string_view authorization, const Secret& secret);

// Returns the HMAC-SHA256. Only for rendezvous/security.
Mac hmac_sha256(std::span<const std::uint8_t> key, std::string_view text);

// Makes a peer's text fit to print: cuts it, and replaces all but printable ASCII characters by
// "?".
std::string shown(std::string_view text);

// ---- the token's proof for single HTTP requests, each on a connection of its own
// (docs/internals/security.md); pure, except for random numbers ----
inline constexpr char kAnswerHeader[] = "DDPRUN-Proof";

// The request that a proof is for; the texts must outlive it. The proof of a GET has version 1. Any
// other request's has version 2, which covers the body, too.
struct HttpRequest {
  std::string_view method, target;
  std::string_view binding;  // of the TLS session; empty without TLS
};

// 16 random bytes, 8 bytes with the time of its end in ms, 16 bytes of a MAC with its maker's key.
using HttpNonce = std::array<std::uint8_t, 40>;

// The rendezvous' side, for all its connections. It stores nothing about requests without a proof:
// a challenge itself shows whether and when it was made here.
class HttpDoor {
 public:
  static constexpr std::chrono::milliseconds kNonceLife{30'000};
  // The limit of used nonces that have not expired; requests beyond it are refused.
  static constexpr std::size_t kMaxUsed = 65'536;

  explicit HttpDoor(std::shared_ptr<const Secret> token);

  // Returns the value of WWW-Authenticate for a 401 answer.
  std::string challenge(Clock::time_point now) const;

  struct Verdict {
    bool admitted = false;
    std::string reason;  // why not; empty: no proof was given
    HttpNonce nonce{};   // if admitted, for seal()
    Nonce of_client{};
    Mac of_body{};  // in version 2, for is_body()
  };
  // Checks the Authorization header, which may be empty. Admits each nonce once. The body may come
  // later.
  Verdict check(std::string_view authorization, const HttpRequest& request, Clock::time_point now);
  // Returns whether the request was admitted with this body.
  bool is_body(const Verdict& admitted, std::string_view body) const;

  // Returns kAnswerHeader's value, which proves that `status` (200, …) and `body` are this
  // rendezvous' answer.
  std::string seal(const Verdict& admitted, unsigned status, std::string_view body) const;

 private:
  bool is_ours(const HttpNonce& nonce) const;
  Mac stamp(const HttpNonce& nonce) const;

  const std::shared_ptr<const Secret> token_;          // shared with its other users
  const Nonce key_;                                    // for stamp(); random in each process
  std::set<std::pair<std::int64_t, HttpNonce>> used_;  // by time of end
};

// The client's side of one request. Failures are an Error(kInvalidArgument) whose message completes
// "the rendezvous at HOST:PORT …".
class HttpProof {
 public:
  explicit HttpProof(std::shared_ptr<const Secret> token);

  // Returns the second request's Authorization; `challenge` is WWW-Authenticate of the 401 answer.
  // A GET has no `body`.
  std::string answer(std::string_view challenge, const HttpRequest& request,
                     std::string_view body = {});
  // Checks the answer's kAnswerHeader, status and body. Throws unless they prove that the sender
  // has the token.
  void check(std::string_view seal, unsigned status, std::string_view body) const;

 private:
  const std::shared_ptr<const Secret> token_;  // shared with its other users
  const Nonce own_;
  HttpNonce nonce_{};
};

}  // namespace ddprun::security
