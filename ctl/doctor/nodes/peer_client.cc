// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/peer_client.h"

#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "common/socket.h"
#include "ctl/doctor/nodes/peer_protocol.h"

namespace ddprun::doctor {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::size_t kMostAtATime = 16;
constexpr int kNumRoundTrips = 100;
constexpr std::chrono::milliseconds kRoundTripsLimit{500};
constexpr std::chrono::milliseconds kDatagramPatience{300};  // for one answer
constexpr int kNumDatagrams = 3;
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

std::int64_t wall_now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

UniqueFd connect_peer(const Peer& peer, Deadline deadline) {
  const SocketAddress address = resolve(peer.endpoint).front();
  UniqueFd fd;
  const int error = connect_once(address, deadline, &fd);
  if (error == 0) return fd;
  throw Error(ErrorCode::kUnavailable,
              error == ETIMEDOUT ? "no answer" : std::string(errno_text(error)));
}

void ask_peer(int fd, const std::string& token, const PeerRequest& request, Deadline deadline) {
  const std::string bytes = to_bytes(token, request);
  send_all(fd, bytes.data(), bytes.size(), deadline);
}

Greeting greet(const Peer& peer, const std::string& token, Deadline deadline) {
  Greeting greeting;
  greeting.peer = peer.node_rank;
  try {
    const UniqueFd fd = connect_peer(peer, deadline);
    const std::int64_t asked = wall_now_ns();
    const Clock::time_point begun = Clock::now();
    ask_peer(fd.get(), token, {}, deadline);
    std::string answer(kGreetingBytes, '\0');
    receive_all(fd.get(), answer.data(), answer.size(), deadline);
    const double passed = Seconds(Clock::now() - begun).count();
    const auto rank = static_cast<int>(number_at(answer, 0, 4));
    const auto came = static_cast<std::int64_t>(number_at(answer, 4, 8));
    const auto sent = static_cast<std::int64_t>(number_at(answer, 12, 8));
    if (rank != peer.node_rank) greeting.failure = concat("node ", rank, " answers there");
    // Of the four stamps the last one is the first and what has passed since.
    const double served = static_cast<double>(sent - came) / 1e9;
    greeting.error_seconds = std::max(0.0, passed - served) / 2;
    greeting.offset_seconds = static_cast<double>(came - asked) / 1e9 - greeting.error_seconds;
  } catch (const Error& error) {
    greeting.failure = error.what();
  }
  return greeting;
}

double round_trip(const Peer& peer, const std::string& token, Deadline deadline) {
  const UniqueFd fd = connect_peer(peer, deadline);
  ask_peer(fd.get(), token, {PeerRequestKind::kEcho, 0, 0}, deadline);
  std::vector<double> times;
  const Deadline enough = Deadline::after(kRoundTripsLimit);
  for (int i = 0; i < kNumRoundTrips && (i == 0 || !enough.expired()); ++i) {
    char byte = 'x';
    const Clock::time_point begun = Clock::now();
    send_all(fd.get(), &byte, 1, deadline);
    receive_all(fd.get(), &byte, 1, deadline);
    times.push_back(Seconds(Clock::now() - begun).count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

double bits_per_second(std::uint64_t num_bytes, double seconds) {
  return static_cast<double>(num_bytes) * 8 / std::max(seconds, 1e-9);
}

double outward(const Peer& peer, const std::string& token, const PairLimits& limits,
               Deadline deadline) {
  const UniqueFd fd = connect_peer(peer, deadline);
  const auto time = static_cast<std::uint64_t>(limits.time.count());
  ask_peer(fd.get(), token, {PeerRequestKind::kReceive, limits.num_bytes, time}, deadline);
  // What is still to be sent at the end goes with the connection, not over the way.
  const linger none{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
  const std::vector<char> piece(kPieceBytes);
  for (std::uint64_t sent = 0; sent < limits.num_bytes && !is_ready(fd.get(), POLLIN);) {
    const SocketStep step =
        send_step(fd.get(), piece.data(), std::min(piece.size(), limits.num_bytes - sent));
    if (!step.ended.empty()) break;  // the answer may have come before
    sent += step.num_bytes;
    if (step.num_bytes > 0) continue;
    if (!wait_ready(fd.get(), POLLIN | POLLOUT, deadline)) {
      throw Error(ErrorCode::kTimeout, "it took no data");
    }
  }
  std::string answer(kReceivedBytes, '\0');
  receive_all(fd.get(), answer.data(), answer.size(), deadline);
  return bits_per_second(number_at(answer, 0, 8),
                         static_cast<double>(number_at(answer, 8, 8)) / 1e9);
}

double inward(const Peer& peer, const std::string& token, const PairLimits& limits,
              Deadline deadline) {
  const UniqueFd fd = connect_peer(peer, deadline);
  const auto time = static_cast<std::uint64_t>(limits.time.count());
  ask_peer(fd.get(), token, {PeerRequestKind::kSend, limits.num_bytes, time}, deadline);
  std::vector<char> piece(kPieceBytes);
  std::uint64_t received = 0;
  Clock::time_point begun = Clock::now();
  double seconds = 0;
  for (;;) {
    const SocketStep step = receive_step(fd.get(), piece.data(), piece.size());
    if (!step.ended.empty()) break;
    if (step.num_bytes == 0) {
      if (!wait_ready(fd.get(), POLLIN, deadline)) {
        throw Error(ErrorCode::kTimeout, "it sent no data");
      }
      continue;
    }
    if (received == 0) begun = Clock::now();
    received += step.num_bytes;
    seconds = Seconds(Clock::now() - begun).count();
    if (Clock::now() - begun >= limits.time) break;
  }
  if (received == 0) throw Error(ErrorCode::kConnectionLost, "it sent no data");
  return bits_per_second(received, seconds);
}

// A datagram of so many bytes on the wire that no router may break up. False: it had no answer;
// `refused`: this node itself doesn't send it.
bool arrives(const SocketAddress& peer, const std::string& token, std::size_t num_bytes,
             bool* refused) {
  const bool is_v6 = peer.storage.ss_family == AF_INET6;
  const UniqueFd fd(::socket(peer.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const int probe = is_v6 ? IPV6_PMTUDISC_PROBE : IP_PMTUDISC_PROBE;
  ::setsockopt(fd.get(), is_v6 ? IPPROTO_IPV6 : IPPROTO_IP,
               is_v6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, &probe, sizeof probe);
  const auto* target = reinterpret_cast<const sockaddr*>(&peer.storage);
  if (!fd || ::connect(fd.get(), target, peer.length) != 0) return false;
  const std::size_t headers = is_v6 ? 48 : 28;
  std::string datagram = token;
  datagram.resize(std::max(kTokenBytes, num_bytes - std::min(num_bytes, headers)), '.');
  for (int i = 0; i < kNumDatagrams; ++i) {
    if (::send(fd.get(), datagram.data(), datagram.size(), MSG_NOSIGNAL) < 0) {
      *refused = *refused || errno == EMSGSIZE;
      continue;
    }
    char answer[4];
    if (!wait_ready(fd.get(), POLLIN, Deadline::after(kDatagramPatience))) continue;
    if (::recv(fd.get(), answer, sizeof answer, MSG_DONTWAIT) == sizeof answer) return true;
  }
  return false;
}

std::string frames_problem(const Peer& peer, const std::string& token, int mtu) {
  if (mtu <= 0) return "";
  const SocketAddress address = resolve(peer.endpoint).front();
  bool refused = false;
  const auto full = std::min<std::size_t>(static_cast<std::size_t>(mtu), 65'000);
  if (arrives(address, token, full, &refused)) return "";
  if (refused) return concat("the way takes no frames of ", full, " bytes");
  // Where small ones don't arrive either, datagrams are filtered, and nothing is known.
  bool small_refused = false;
  if (!arrives(address, token, 0, &small_refused)) return "";
  return concat("frames of ", full, " bytes vanish on the way, small ones arrive");
}

}  // namespace

std::vector<Greeting> greet_all(const std::vector<Peer>& peers, const std::string& token,
                                std::chrono::milliseconds patience, Deadline deadline) {
  std::vector<Greeting> greetings(peers.size());  // each is written by one thread
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < peers.size(); i = next++) {
      if (deadline.expired()) {
        greetings[i] = {peers[i].node_rank, "not tried: the time was over", 0, 0};
        continue;
      }
      const auto limit = std::min<Clock::duration>(patience, deadline.remaining());
      greetings[i] = greet(peers[i], token, Deadline::after(limit));
    }
  };
  std::vector<std::thread> others;
  while (others.size() + 1 < std::min(kMostAtATime, peers.size())) {
    try {
      others.push_back(start_quiet_thread("doctor-greets", work));
    } catch (const Error&) {
      break;  // there is no room for more: those that are here do it all
    }
  }
  work();
  for (std::thread& thread : others) thread.join();
  return greetings;
}

PairMeasure measure_pair(int own_rank, const Peer& peer, const std::string& token,
                         const PairLimits& limits, Deadline deadline) {
  PairMeasure measure;
  measure.from = own_rank;
  measure.to = peer.node_rank;
  try {
    measure.round_trip_seconds = round_trip(peer, token, deadline);
    measure.out_bits_per_second = outward(peer, token, limits, deadline);
    measure.in_bits_per_second = inward(peer, token, limits, deadline);
    measure.frames = frames_problem(peer, token, limits.mtu);
  } catch (const Error& error) {
    measure.failure = error.what();
  }
  return measure;
}

}  // namespace ddprun::doctor
