// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>

#include "common/byte_text.h"
#include "common/check.h"
#include "common/random_id.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun::security {
namespace {

constexpr std::size_t kMaxShownBytes = 200;

// Each kind of proof has its own label, so that one never serves as another.
constexpr std::string_view kAgentLabel = "ddprun proof 1: agent";
constexpr std::string_view kRendezvousLabel = "ddprun proof 1: rendezvous";

constexpr std::string_view kProofWord = "proof 1 ";
constexpr std::string_view kRefusedWord = "refused ";
constexpr std::size_t kHexBytes = 2 * sizeof(Nonce);

constexpr char kOtherToken[] = "its token is another one (compare the --token-file of both)";

Nonce draw_nonce() {
  Nonce nonce;
  draw_random(nonce);
  return nonce;
}

constexpr std::string_view kRequestLabel = "ddprun http 1: request";
constexpr std::string_view kAnswerLabel = "ddprun http 1: answer";
constexpr std::string_view kStampLabel = "ddprun http 1: nonce";

// Version 2, for requests with a body.
constexpr std::string_view kRequestLabel2 = "ddprun http 2: request";
constexpr std::string_view kBodyLabel2 = "ddprun http 2: body";

constexpr std::string_view kScheme = "DDPRUN-HMAC 1 ", kScheme2 = "DDPRUN-HMAC 2 ";
constexpr std::size_t kRandomBytes = 16, kStampAt = 24;

std::int64_t to_ms(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

std::int64_t end_of(const HttpNonce& nonce) {
  std::uint64_t end = 0;
  for (std::size_t i = kRandomBytes; i < kStampAt; ++i) end = end << 8 | nonce[i];
  return static_cast<std::int64_t>(end);
}

Mac mac_of(const Secret& token, std::string_view label, const HttpNonce& nonce,
           const Nonce& of_client, std::string_view said) {
  std::string text(label);
  text.push_back('\0');
  text.append(nonce.begin(), nonce.end());
  text.append(of_client.begin(), of_client.end());
  return hmac_sha256(token.bytes(), text.append(said));
}

// Returns the request as text. Neither a method nor a target has spaces, so no two requests have
// the same text.
std::string asked_text(const HttpRequest& request) {
  return concat(request.method, " ", request.target, " ", request.binding);
}

Mac prove_request(const Secret& token, const HttpNonce& nonce, const Nonce& of_client,
                  const HttpRequest& request) {
  return mac_of(token, kRequestLabel, nonce, of_client, asked_text(request));
}

Mac prove_body(const Secret& token, const HttpNonce& nonce, const Nonce& of_client,
               std::string_view body) {
  return mac_of(token, kBodyLabel2, nonce, of_client, body);
}

Mac prove_request_with(const Secret& token, const HttpNonce& nonce, const Nonce& of_client,
                       const HttpRequest& request, const Mac& of_body) {
  return mac_of(token, kRequestLabel2, nonce, of_client,
                std::string(of_body.begin(), of_body.end()) + asked_text(request));
}

Mac prove_answer(const Secret& token, const HttpNonce& nonce, const Nonce& of_client,
                 unsigned status, std::string_view body) {
  return mac_of(token, kAnswerLabel, nonce, of_client, concat(status, " ", body));
}

}  // namespace

bool is_bearer(std::string_view authorization, const Secret& secret) {
  constexpr std::string_view kBearer = "bearer ";  // in any case (RFC 9110, 11.1)
  if (!equals_ignoring_case(authorization.substr(0, kBearer.size()), kBearer)) return false;
  const std::string_view given = authorization.substr(kBearer.size());
  const std::span<const std::uint8_t> wanted = secret.bytes();
  return given.size() == wanted.size() &&
         ::CRYPTO_memcmp(given.data(), wanted.data(), wanted.size()) == 0;
}

Mac hmac_sha256(std::span<const std::uint8_t> key, std::string_view text) {
  Mac mac;
  unsigned int size = 0;
  const auto* made =
      ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &size);
  DDPRUN_CHECK(made != nullptr && size == mac.size());
  return mac;
}

std::string shown(std::string_view text) {
  std::string clean(text.substr(0, kMaxShownBytes));
  for (char& c : clean) {
    if (c < ' ' || c > '~') c = '?';
  }
  return clean;
}

Mac prove(const Secret& token, Side side, const Nonce& of_rendezvous, const Nonce& of_agent,
          std::string_view binding) {
  // All parts but the last have a fixed size, so no two inputs give the same bytes.
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
    throw_invalid(
        "has no token, but this side has one (--token-file): give it to both, or, on a network "
        "that "
        "you trust, to neither");
  }
  const std::size_t space = challenge.find(' ');
  const std::string_view version = challenge.substr(0, space);
  if (version != kProofVersion) {
    throw_invalid("speaks version ", shown(version), " of the token's proof, this ddprun ",
                  kProofVersion, ": install the same version of both");
  }
  if (space == std::string_view::npos || !from_hex(challenge.substr(space + 1), of_rendezvous_)) {
    throw_invalid("sent a challenge that can't be read");
  }
  const Mac mac = prove(*token_, Side::kAgent, of_rendezvous_, nonce_, binding_);
  return concat(kProofWord, to_hex(nonce_), " ", to_hex(mac));
}

void AgentProof::check(std::string_view frame) const {
  if (frame.starts_with(kRefusedWord)) {
    throw_invalid("refused this node: ", shown(frame.substr(kRefusedWord.size())));
  }
  Mac mac{};
  if (!frame.starts_with(kProofWord) || !from_hex(frame.substr(kProofWord.size()), mac)) {
    throw_invalid("gave no proof that it has the token: is it the right host and port?");
  }
  if (!is_same(mac, prove(*token_, Side::kRendezvous, of_rendezvous_, nonce_, binding_))) {
    throw_invalid("gave a wrong proof of the token: it is somebody else's, or ", kOtherToken);
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

HttpDoor::HttpDoor(std::shared_ptr<const Secret> token)
    : token_(std::move(token)), key_(draw_nonce()) {}

Mac HttpDoor::stamp(const HttpNonce& nonce) const {
  std::string text(kStampLabel);
  text.append(nonce.begin(), nonce.begin() + kStampAt);
  return hmac_sha256(key_, text);
}

bool HttpDoor::is_ours(const HttpNonce& nonce) const {
  Mac claimed = stamp(nonce);
  std::copy(nonce.begin() + kStampAt, nonce.end(), claimed.begin());
  return is_same(claimed, stamp(nonce));
}

std::string HttpDoor::challenge(Clock::time_point now) const {
  HttpNonce nonce{};
  draw_random(std::span(nonce).first(kRandomBytes));
  auto end = static_cast<std::uint64_t>(to_ms(now + kNonceLife));
  for (std::size_t i = kStampAt; i > kRandomBytes; --i, end >>= 8) {
    nonce[i - 1] = static_cast<std::uint8_t>(end & 255);
  }
  const Mac mark = stamp(nonce);
  std::copy(mark.begin(), mark.begin() + (nonce.size() - kStampAt), nonce.begin() + kStampAt);
  return concat(kScheme, to_hex(nonce));
}

HttpDoor::Verdict HttpDoor::check(std::string_view authorization, const HttpRequest& request,
                                  Clock::time_point now) {
  Verdict verdict;
  const auto refuse = [&](const char* why) {
    verdict.reason = why;
    return verdict;
  };
  if (authorization.empty()) return verdict;
  constexpr std::size_t kNonceHex = 2 * sizeof(HttpNonce), kHex = 2 * sizeof(Nonce);
  const bool has_body = request.method != "GET";
  const std::string_view scheme = has_body ? kScheme2 : kScheme;
  const std::size_t num_codes = has_body ? 3 : 2;
  constexpr char kNoProof[] = "its Authorization is no proof of the token";
  if (authorization.size() != scheme.size() + kNonceHex + num_codes * (1 + kHex) ||
      !authorization.starts_with(scheme)) {
    return refuse(kNoProof);
  }
  authorization.remove_prefix(scheme.size());
  const auto code = [&](std::size_t i, auto& into) {
    return from_hex(authorization.substr(kNonceHex + 1 + i * (kHex + 1), kHex), into);
  };
  Mac mac{};
  if (!from_hex(authorization.substr(0, kNonceHex), verdict.nonce) || !code(0, verdict.of_client) ||
      (has_body && !code(1, verdict.of_body)) || !code(num_codes - 1, mac)) {
    return refuse(kNoProof);
  }
  // The token is checked first, so that a client without it learns nothing else and leaves no
  // entry.
  const Mac right = has_body ? prove_request_with(*token_, verdict.nonce, verdict.of_client,
                                                  request, verdict.of_body)
                             : prove_request(*token_, verdict.nonce, verdict.of_client, request);
  if (!is_same(mac, right)) {
    return refuse("its token is another one (compare the --token-file of both)");
  }
  const std::int64_t time = to_ms(now), end = end_of(verdict.nonce);
  if (!is_ours(verdict.nonce) || end <= time) {
    return refuse("its proof is of another challenge, or of one that is over");
  }
  used_.erase(used_.begin(), used_.lower_bound({time + 1, HttpNonce{}}));
  if (used_.size() >= kMaxUsed) return refuse("too many requests at once");
  if (!used_.emplace(end, verdict.nonce).second) return refuse("its proof was used before");
  verdict.admitted = true;
  return verdict;
}

bool HttpDoor::is_body(const Verdict& admitted, std::string_view body) const {
  return admitted.admitted &&
         is_same(admitted.of_body, prove_body(*token_, admitted.nonce, admitted.of_client, body));
}

std::string HttpDoor::seal(const Verdict& admitted, unsigned status, std::string_view body) const {
  return to_hex(prove_answer(*token_, admitted.nonce, admitted.of_client, status, body));
}

HttpProof::HttpProof(std::shared_ptr<const Secret> token)
    : token_(std::move(token)), own_(draw_nonce()) {}

std::string HttpProof::answer(std::string_view challenge, const HttpRequest& request,
                              std::string_view body) {
  if (!challenge.starts_with(kScheme) || !from_hex(challenge.substr(kScheme.size()), nonce_)) {
    throw_invalid("sent a challenge that can't be read: ", shown(challenge));
  }
  if (request.method != "GET") {
    const Mac of_body = prove_body(*token_, nonce_, own_, body);
    const Mac mac = prove_request_with(*token_, nonce_, own_, request, of_body);
    return concat(kScheme2, to_hex(nonce_), " ", to_hex(own_), " ", to_hex(of_body), " ",
                  to_hex(mac));
  }
  const Mac mac = prove_request(*token_, nonce_, own_, request);
  return concat(kScheme, to_hex(nonce_), " ", to_hex(own_), " ", to_hex(mac));
}

void HttpProof::check(std::string_view seal, unsigned status, std::string_view body) const {
  Mac mac{};
  if (from_hex(seal, mac) && is_same(mac, prove_answer(*token_, nonce_, own_, status, body)))
    return;
  throw_invalid(
      "answered without a proof that it has the token: it is somebody else's, or the answer "
      "was changed on the way");
}

}  // namespace ddprun::security
