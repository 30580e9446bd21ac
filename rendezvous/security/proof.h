// SPDX-License-Identifier: Apache-2.0
// Proof that both ends of a connection have the same token, which itself is never sent
// (docs/security.md has the conversation). Pure but for the drawing of nonces.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/secret.h"
#include "rendezvous/security/mac.h"

namespace ddprun::security {

using Nonce = std::array<std::uint8_t, 32>;

inline constexpr char kChallengeHeader[] = "DDPRUN-Challenge";
// In the answer to a request that came without TLS where it has to be.
inline constexpr char kTlsHeader[] = "DDPRUN-Wants-TLS";
inline constexpr char kProofVersion[] = "1";
// Of a frame before the proof; a refusal is the longest.
inline constexpr std::size_t kMaxProofBytes = 1024;

// Throws Error(kSystem).
Nonce draw_nonce();

enum class Side { kAgent, kRendezvous };

// What `side` says to show that it has `token` on this connection. `binding`: of the TLS session
// that it runs in, empty without TLS.
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

}  // namespace ddprun::security
