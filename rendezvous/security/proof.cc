// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/proof.h"

#include <openssl/crypto.h>

#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/random_id.h"
#include "rendezvous/security/hmac.h"

namespace ddprun::security {
namespace {

// One for each meaning, so that what proves one thing never proves another.
constexpr std::string_view kAgentLabel = "ddprun proof 1: agent";
constexpr std::string_view kRendezvousLabel = "ddprun proof 1: rendezvous";

constexpr std::string_view kProofWord = "proof 1 ";
constexpr std::string_view kRefusedWord = "refused ";
constexpr std::size_t kHexBytes = 2 * sizeof(Nonce);

constexpr char kOtherToken[] = "its token is another one (compare the --token-file of both)";

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); }

}  // namespace

Nonce draw_nonce() {
  Nonce nonce;
  draw_random(nonce);
  return nonce;
}

Mac prove(const Secret& token, Side side, const Nonce& of_rendezvous, const Nonce& of_agent,
          std::string_view binding) {
  // All but the last part have a fixed size: no two inputs are the same bytes.
  std::string said(side == Side::kAgent ? kAgentLabel : kRendezvousLabel);
  said.push_back('\0');
  said.append(of_rendezvous.begin(), of_rendezvous.end());
  said.append(of_agent.begin(), of_agent.end());
  said.append(binding);
  return hmac_sha256(token.bytes(), said);
}

bool is_same(const Mac& one, const Mac& other) {
  return ::CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

AgentProof::AgentProof(std::shared_ptr<const Secret> token, std::string binding)
    : token_(std::move(token)), binding_(std::move(binding)), nonce_(draw_nonce()) {}

std::string AgentProof::answer(std::string_view challenge) {
  if (challenge.empty()) {
    fail(
        "has no token, but this side has one (--token-file): give it to both, or, on a network "
        "that "
        "you trust, to neither");
  }
  const std::size_t space = challenge.find(' ');
  const std::string_view version = challenge.substr(0, space);
  if (version != kProofVersion) {
    fail(concat("speaks version ", shown(version), " of the token's proof, this ddprun ",
                kProofVersion, ": install the same version of both"));
  }
  if (space == std::string_view::npos || !from_hex(challenge.substr(space + 1), of_rendezvous_)) {
    fail("sent a challenge that can't be read");
  }
  const Mac mac = prove(*token_, Side::kAgent, of_rendezvous_, nonce_, binding_);
  return concat(kProofWord, to_hex(nonce_), " ", to_hex(mac));
}

void AgentProof::check(std::string_view frame) const {
  if (frame.starts_with(kRefusedWord)) {
    fail(concat("refused this node: ", shown(frame.substr(kRefusedWord.size()))));
  }
  Mac mac{};
  if (!frame.starts_with(kProofWord) || !from_hex(frame.substr(kProofWord.size()), mac)) {
    fail("gave no proof that it has the token: is it the right host and port?");
  }
  if (!is_same(mac, prove(*token_, Side::kRendezvous, of_rendezvous_, nonce_, binding_))) {
    fail(concat("gave a wrong proof of the token: it is somebody else's, or ", kOtherToken));
  }
}

RendezvousProof::RendezvousProof(std::shared_ptr<const Secret> token, std::string binding)
    : token_(std::move(token)), binding_(std::move(binding)), nonce_(draw_nonce()) {}

std::string RendezvousProof::challenge() const {
  return concat(kProofVersion, " ", to_hex(nonce_));
}

RendezvousProof::Verdict RendezvousProof::check(std::string_view frame) const {
  const auto refuse = [](const std::string& why) {
    return Verdict{false, concat(kRefusedWord, why), why};
  };
  Nonce of_agent{};
  Mac mac{};
  const std::size_t size = kProofWord.size() + 2 * kHexBytes + 1;
  if (frame.size() != size || !frame.starts_with(kProofWord) ||
      !from_hex(frame.substr(kProofWord.size(), kHexBytes), of_agent) ||
      frame[kProofWord.size() + kHexBytes] != ' ' ||
      !from_hex(frame.substr(kProofWord.size() + kHexBytes + 1), mac)) {
    return refuse("it gave no proof of the token (--token-file)");
  }
  if (!is_same(mac, prove(*token_, Side::kAgent, nonce_, of_agent, binding_))) {
    return refuse(kOtherToken);
  }
  const Mac own = prove(*token_, Side::kRendezvous, nonce_, of_agent, binding_);
  return {true, concat(kProofWord, to_hex(own)), ""};
}

}  // namespace ddprun::security
