// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/proof.h"

#include <numeric>
#include <set>

#include "common/byte_text.h"
#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/secret_file.h"

namespace ddprun::security {
namespace {

using ddprun::test::Contains;
using ddprun::test::secret_of;

// These types can be compared in constant time or not at all.
template <typename One, typename Other>
concept AreCompared = requires(const One& one, const Other& other) {
  one == other;
}
|| requires(const One& one, const Other& other) { one != other; }
|| requires(const One& one, const Other& other) { one < other; };
static_assert(AreCompared<Nonce, Nonce>);
static_assert(!AreCompared<Mac, Mac>);
static_assert(!AreCompared<Mac, Nonce> && !AreCompared<Nonce, Mac>);

constexpr char kToken[] = "correct horse battery staple";

Nonce counted_from(std::uint8_t first) {
  Nonce nonce;
  std::iota(nonce.begin(), nonce.end(), first);
  return nonce;
}

// Both sides of one connection.
struct Talk {
  explicit Talk(const std::string& agents = kToken, const std::string& rendezvous = kToken,
                const std::string& agents_binding = "", const std::string& binding = "")
      : agent(secret_of(agents), agents_binding), door(secret_of(rendezvous), binding) {}
  AgentProof agent;
  RendezvousProof door;
};

TEST_CASE("Proof: the codes are HMAC-SHA256 over label, both nonces and the binding") {
  const auto token = secret_of(kToken);
  const auto code = [&](Side side, const std::string& binding) {
    return to_hex(prove(*token, side, counted_from(0), counted_from(32), binding));
  };
  // Python: hmac.new(token, b"ddprun proof 1: agent\0" + bytes(range(64)), "sha256").hexdigest()
  CHECK(code(Side::kAgent, "") ==
        "794f01b065f5fddede2146a58bc8873bbd9c705dfd5182679172affa06836d80");
  CHECK(code(Side::kRendezvous, "") ==
        "b1182fcbc020eacf8a226975191caf7ba4fd571aa789e23588e919c48907bed0");
  CHECK(code(Side::kAgent, std::string(32, 7)) ==
        "dbebb2e81ae2bd919655b8cbb7ca054d03ace351425ec992eb22a65320f34853");
}

TEST_CASE("Proof: two that have the token believe each other") {
  Talk talk(kToken, std::string(kToken) + "\n");
  const auto verdict = talk.door.check(talk.agent.answer(talk.door.challenge()));
  CHECK(verdict.admitted);
  CHECK_NOTHROW(talk.agent.check(verdict.reply));
  CHECK_THAT(verdict.reply, !Contains("horse"));
}

TEST_CASE("Proof: another token is refused, and said on both sides") {
  Talk talk("another token of ours");
  const auto verdict = talk.door.check(talk.agent.answer(talk.door.challenge()));
  CHECK_FALSE(verdict.admitted);
  CHECK_THAT(verdict.reason, Contains("its token is another one"));
  CHECK_THROWS_WITH(talk.agent.check(verdict.reply),
                    Contains("refused this node: its token is another one"));
}

TEST_CASE("Proof: one recorded on another connection is worth nothing") {
  Talk talk, later;
  const std::string recorded = talk.agent.answer(talk.door.challenge());
  const auto reply = talk.door.check(recorded).reply;
  CHECK_FALSE(later.door.check(recorded).admitted);
  // A program in the rendezvous' place can't use the rendezvous' own recorded answer either.
  later.agent.answer(talk.door.challenge());
  CHECK_THROWS_WITH(later.agent.check(reply), Contains("wrong proof"));
}

TEST_CASE("Proof: the rendezvous' words are no agent's proof, and the reverse") {
  Talk talk;
  const std::string proof = talk.agent.answer(talk.door.challenge());
  const std::string nonce = proof.substr(8, 64), code = proof.substr(73);
  const auto verdict = talk.door.check(proof);
  REQUIRE(verdict.admitted);
  CHECK_FALSE(talk.door.check("proof 1 " + nonce + " " + verdict.reply.substr(8)).admitted);
  CHECK_THROWS_WITH(talk.agent.check("proof 1 " + code), Contains("wrong proof"));
}

TEST_CASE("Proof: one who sits between two TLS sessions can't pass it on") {
  Talk talk(kToken, kToken, std::string(32, 1), std::string(32, 2));
  CHECK_FALSE(talk.door.check(talk.agent.answer(talk.door.challenge())).admitted);
}

TEST_CASE("Proof: every connection has a challenge of its own") {
  std::set<std::string> seen;
  const auto token = secret_of(kToken);
  for (int i = 0; i < 1000; ++i) seen.insert(RendezvousProof(token, "").challenge());
  CHECK(seen.size() == 1000);
}

TEST_CASE("Proof: a challenge that is none is refused") {
  Talk talk;
  CHECK_THROWS_WITH(talk.agent.answer(""), Contains("has no token, but this side has one"));
  CHECK_THROWS_WITH(talk.agent.answer("2 00"),
                    Contains("speaks version 2") && Contains("same version"));
  CHECK_THROWS_WITH(talk.agent.answer("\n\x1b[2J"), Contains("speaks version ??[2J"));
  const std::string good = talk.door.challenge();
  for (const std::string& bad : {good.substr(0, good.size() - 1), good + "0", std::string("1"),
                                 "1 " + std::string(64, 'g'), "1 " + std::string(64, 'A')}) {
    CHECK_THROWS_WITH(talk.agent.answer(bad), Contains("can't be read"));
  }
}

TEST_CASE("Proof: any other frame is refused") {
  Talk talk;
  const std::string good = talk.agent.answer(talk.door.challenge());
  std::vector<std::string> bad = {"", "proof 1 ", R"({"type":"join"})", good + " ",
                                  good.substr(0, good.size() - 1)};
  for (std::size_t i = 0; i < good.size(); ++i) {
    bad.push_back(good);
    bad.back()[i] ^= 1;
  }
  for (const std::string& frame : bad) CHECK_FALSE(talk.door.check(frame).admitted);
  CHECK(talk.door.check(good).admitted);

  const std::string reply = talk.door.check(good).reply;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    std::string changed = reply;
    changed[i] ^= 1;
    CHECK_THROWS_AS(talk.agent.check(changed), Error);
  }
  CHECK_THROWS_WITH(talk.agent.check("refused a\nb"), Contains("refused this node: a?b"));
}

}  // namespace
}  // namespace ddprun::security
