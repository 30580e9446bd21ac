// SPDX-License-Identifier: Apache-2.0
// Two nodes measure the way between them: over the loopback.
#include <cmath>

#include "common/socket.h"
#include "ctl/doctor/nodes/peers.h"
#include "tests/support/catch.h"

namespace ddprun::doctor {
namespace {

using ddprun::test::Contains;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kEnough{20};
const std::string kToken(kTokenBytes, 'a');

Peer peer_at(std::uint16_t port, int node_rank = 3) { return {node_rank, {"127.0.0.1", port}}; }

TEST_CASE("doctor's peers: a greeted node says who it is, and what its clock shows", "[net]") {
  const PeerServer server("127.0.0.1", kToken, 3);
  const std::vector<Peer> peers(40, peer_at(server.port()));
  for (const Greeting& each : greet_all(peers, kToken, kEnough, Deadline::after(kEnough))) {
    CHECK(each.failure == "");
    CHECK(std::abs(each.offset_seconds) < 1);
    CHECK(each.error_seconds >= 0);
  }
  const auto other =
      greet_all({peer_at(server.port(), 4)}, kToken, kEnough, Deadline::after(kEnough));
  CHECK(other.front().failure == "node 3 answers there");
}

TEST_CASE("doctor's peers: another token, nobody and somebody silent are failures", "[net]") {
  const PeerServer server("127.0.0.1", kToken, 3);
  const UniqueFd silent = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
  UniqueFd closed = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
  const std::uint16_t nobody = local_address(closed.get()).port();
  closed.reset();
  const std::vector<Peer> peers = {peer_at(nobody), peer_at(local_address(silent.get()).port())};
  const auto greetings = greet_all(peers, kToken, milliseconds(100), Deadline::after(kEnough));
  CHECK(greetings[0].failure == "Connection refused");
  CHECK(greetings[1].failure == "no answer before the deadline");
  const auto strange = greet_all({peer_at(server.port())}, std::string(kTokenBytes, 'b'), kEnough,
                                 Deadline::after(kEnough));
  CHECK_THAT(strange.front().failure, Contains("closed"));
  const auto late = greet_all(peers, kToken, kEnough, Deadline::after(milliseconds(0)));
  CHECK(late.front().failure == "not tried: the time was over");
}

TEST_CASE("doctor's peers: a pair's round trip and bandwidth are measured, each way", "[net]") {
  const PeerServer server("127.0.0.1", kToken, 3);
  PairLimits limits;
  limits.num_bytes = 1 << 20;
  limits.time = kEnough;
  limits.mtu = 1500;
  const Deadline deadline = Deadline::after(kEnough);
  const PairMeasure measure = measure_pair(1, peer_at(server.port()), kToken, limits, deadline);
  CHECK(measure.failure == "");
  CHECK(measure.from == 1);
  CHECK(measure.to == 3);
  CHECK(measure.round_trip_seconds > 0);
  CHECK(measure.out_bits_per_second > 0);
  CHECK(measure.in_bits_per_second > 0);
  CHECK(measure.frames == "");
  limits.num_bytes = std::uint64_t{1} << 40;  // so much that the time ends the measurement
  limits.time = milliseconds(50);
  CHECK(measure_pair(1, peer_at(server.port()), kToken, limits, deadline).failure == "");
}

}  // namespace
}  // namespace ddprun::doctor
