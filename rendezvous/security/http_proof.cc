// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/http_proof.h"

#include <algorithm>

#include "common/error.h"
#include "common/hex.h"
#include "common/log.h"
#include "common/random_id.h"
#include "rendezvous/security/hmac.h"

namespace ddprun::security {
namespace {

constexpr std::string_view kRequestLabel = "ddprun http 1: request";
constexpr std::string_view kAnswerLabel = "ddprun http 1: answer";
constexpr std::string_view kStampLabel = "ddprun http 1: nonce";

// Version 2: of requests with a body.
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

std::string begin_text(std::string_view label, const HttpNonce& nonce, const Nonce& of_client) {
  std::string text(label);
  text.push_back('\0');
  text.append(nonce.begin(), nonce.end());
  text.append(of_client.begin(), of_client.end());
  return text;
}

Mac prove_request(const Secret& token, const HttpNonce& nonce, const Nonce& of_client,
                  const HttpRequest& request) {
  std::string text = begin_text(kRequestLabel, nonce, of_client);
  // Neither a method nor a target has spaces, so no two requests are the same text.
  text.append(concat(request.method, " ", request.target, " ", request.binding));
  return hmac_sha256(token.bytes(), text);
}

Mac prove_body(const Secret& token, const HttpNonce& nonce, const Nonce& of_client,
               std::string_view body) {
  std::string text = begin_text(kBodyLabel2, nonce, of_client);
  text.append(body);
  return hmac_sha256(token.bytes(), text);
}

Mac prove_request_with(const Secret& token, const HttpNonce& nonce, const Nonce& of_client,
                       const HttpRequest& request, const Mac& of_body) {
  std::string text = begin_text(kRequestLabel2, nonce, of_client);
  text.append(of_body.begin(), of_body.end());
  text.append(concat(request.method, " ", request.target, " ", request.binding));
  return hmac_sha256(token.bytes(), text);
}

Mac prove_answer(const Secret& token, const HttpNonce& nonce, const Nonce& of_client,
                 unsigned status, std::string_view body) {
  std::string text = begin_text(kAnswerLabel, nonce, of_client);
  text.append(concat(status, " ", body));
  return hmac_sha256(token.bytes(), text);
}

}  // namespace

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
  // The token first: who hasn't it learns nothing else, and leaves nothing in the table.
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
    throw Error(ErrorCode::kInvalidArgument,
                concat("sent a challenge that can't be read: ", shown(challenge)));
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
  throw Error(
      ErrorCode::kInvalidArgument,
      "answered without a proof that it has the token: it is somebody else's, or the answer "
      "was changed on the way");
}

}  // namespace ddprun::security
