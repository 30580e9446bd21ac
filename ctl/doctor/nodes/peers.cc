// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/peers.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>
#include <optional>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "common/quiet_thread.h"
#include "common/socket.h"
#include "common/text.h"

namespace ddprun::doctor {
namespace {

enum class PeerRequestKind : char { kGreet = 'g', kEcho = 'e', kReceive = 'r', kSend = 's' };

struct PeerRequest {
  PeerRequestKind kind = PeerRequestKind::kGreet;
  std::uint64_t num_bytes = 0, nanoseconds = 0;
};

constexpr std::size_t kRequestBytes = kTokenBytes + 1 + 8 + 8;
constexpr std::size_t kGreetingBytes = 4 + 8 + 8;
constexpr std::size_t kReceivedBytes = 8 + 8;

void put_number(std::string& text, std::uint64_t value, std::size_t num_bytes) {
  for (std::size_t i = num_bytes; i-- > 0;) {
    text.push_back(static_cast<char>(static_cast<unsigned char>(value >> (8 * i))));
  }
}

std::uint64_t number_at(std::string_view text, std::size_t at, std::size_t num_bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < num_bytes; ++i) {
    value = value << 8 | static_cast<unsigned char>(text[at + i]);
  }
  return value;
}

std::string to_bytes(const std::string& token, const PeerRequest& request) {
  std::string text = token;
  text.push_back(static_cast<char>(request.kind));
  put_number(text, request.num_bytes, 8);
  put_number(text, request.nanoseconds, 8);
  return text;
}

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
    // The fourth time stamp is the first one plus the time since then.
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
  // Data that is still unsent at the end is dropped with the connection.
  const linger none{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
  const std::vector<char> piece(kPieceBytes);
  for (std::uint64_t sent = 0; sent < limits.num_bytes && !is_ready(fd.get(), POLLIN);) {
    const SocketStep step =
        send_step(fd.get(), piece.data(), std::min(piece.size(), limits.num_bytes - sent));
    if (!step.ended.empty()) break;  // the answer may have come already
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

// Whether an unfragmented datagram of this size on the wire arrives. False: no answer came. Sets
// `refused` if this node itself doesn't send it.
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
  // If small ones don't arrive either, datagrams are filtered, and nothing is known of large ones.
  bool small_refused = false;
  if (!arrives(address, token, 0, &small_refused)) return "";
  return concat("frames of ", full, " bytes vanish on the way, small ones arrive");
}

constexpr std::chrono::seconds kSessionLimit{20};  // the longest life of a connection
constexpr std::size_t kMostSessions = 256;

std::uint64_t nanoseconds_since(Clock::time_point begin) {
  const auto passed = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
  return static_cast<std::uint64_t>(passed.count());
}

// Serves one connection: reads its request, then does what it asks for.
class PeerSession {
 public:
  PeerSession(UniqueFd fd, const std::string& token, int node_rank)
      : fd_(std::move(fd)), token_(token), node_rank_(node_rank) {}

  int fd() const { return fd_.get(); }
  Clock::time_point end_by() const { return end_by_; }
  short events() const {
    const bool sends = (is_asked_ && request_.kind == PeerRequestKind::kSend) || !answer_.empty();
    return sends ? POLLOUT : POLLIN;
  }

  // False: the session is over.
  bool go_on() {
    if (!answer_.empty()) return send_answer();
    if (!is_asked_) return read_request();
    switch (request_.kind) {
      case PeerRequestKind::kGreet:
        return false;
      case PeerRequestKind::kEcho:
        return echo();
      case PeerRequestKind::kReceive:
        return receive();
      case PeerRequestKind::kSend:
        return send();
    }
    return false;
  }

 private:
  bool read_request() {
    char bytes[kRequestBytes];
    const SocketStep step = receive_step(fd_.get(), bytes, kRequestBytes - text_.size());
    if (!step.ended.empty()) return false;
    text_.append(bytes, step.num_bytes);
    if (text_.size() < kRequestBytes) return true;
    if (text_.compare(0, kTokenBytes, token_) != 0) return false;
    const std::int64_t came = wall_now_ns();
    request_.kind = static_cast<PeerRequestKind>(text_[kTokenBytes]);
    request_.num_bytes = number_at(text_, kTokenBytes + 1, 8);
    request_.nanoseconds = number_at(text_, kTokenBytes + 9, 8);
    is_asked_ = true;
    begun_ = Clock::now();
    if (request_.kind != PeerRequestKind::kGreet) return true;
    put_number(answer_, static_cast<std::uint64_t>(node_rank_), 4);
    put_number(answer_, static_cast<std::uint64_t>(came), 8);
    put_number(answer_, static_cast<std::uint64_t>(wall_now_ns()), 8);
    return send_answer();
  }

  bool send_answer() {
    const SocketStep step = send_step(fd_.get(), answer_.data(), answer_.size());
    if (!step.ended.empty()) return false;
    answer_.erase(0, step.num_bytes);
    return !answer_.empty() || request_.kind == PeerRequestKind::kEcho ||
           request_.kind == PeerRequestKind::kReceive;
  }

  bool echo() {
    char bytes[64];
    const SocketStep step = receive_step(fd_.get(), bytes, sizeof bytes);
    if (!step.ended.empty()) return false;
    answer_.append(bytes, step.num_bytes);
    return answer_.empty() || send_answer();
  }

  bool receive() {
    block_.resize(kPieceBytes);
    const SocketStep step = receive_step(fd_.get(), block_.data(), block_.size());
    if (!step.ended.empty()) return false;
    if (is_answered_) return true;  // drops late data: closing now could lose the answer
    if (num_moved_ == 0) begun_ = Clock::now();
    num_moved_ += step.num_bytes;
    const std::uint64_t passed = nanoseconds_since(begun_);
    if (num_moved_ < request_.num_bytes && passed < request_.nanoseconds) return true;
    put_number(answer_, num_moved_, 8);
    put_number(answer_, std::max<std::uint64_t>(passed, 1), 8);
    is_answered_ = true;
    return send_answer();
  }

  bool send() {
    block_.resize(kPieceBytes);
    if (num_moved_ >= request_.num_bytes) return false;
    if (nanoseconds_since(begun_) >= request_.nanoseconds) return false;
    const std::size_t size = std::min<std::size_t>(block_.size(), request_.num_bytes - num_moved_);
    const SocketStep step = send_step(fd_.get(), block_.data(), size);
    num_moved_ += step.num_bytes;
    return step.ended.empty();
  }

  // Constant after construction.
  UniqueFd fd_;
  const std::string& token_;
  const int node_rank_;
  const Clock::time_point end_by_ = Clock::now() + kSessionLimit;

  std::string text_;  // the part of the request that has come
  bool is_asked_ = false, is_answered_ = false;
  PeerRequest request_;
  Clock::time_point begun_;
  std::uint64_t num_moved_ = 0;
  std::string answer_;  // the bytes still to be sent
  std::vector<char> block_;
};

void answer_datagram(int fd, const std::string& token) {
  std::vector<char> bytes(std::size_t{64} << 10);
  SocketAddress from;
  from.length = sizeof from.storage;
  auto* source = reinterpret_cast<sockaddr*>(&from.storage);
  const ssize_t size =
      ::recvfrom(fd, bytes.data(), bytes.size(), MSG_DONTWAIT, source, &from.length);
  if (size < static_cast<ssize_t>(kTokenBytes)) return;
  if (token.compare(0, kTokenBytes, bytes.data(), kTokenBytes) != 0) return;
  std::string answer;
  put_number(answer, static_cast<std::uint64_t>(size), 4);
  ::sendto(fd, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL, source, from.length);
}

struct ServedFds {
  int listener, datagrams, stop;
};

void serve_peers(ServedFds fds, const std::string& token, int node_rank) {
  std::list<PeerSession> sessions;
  for (;;) {
    std::vector<pollfd> polled = {{fds.stop, POLLIN, 0}, {fds.datagrams, POLLIN, 0}};
    // With too many sessions, later connections wait in the listener's queue.
    const short listens = sessions.size() < kMostSessions ? POLLIN : 0;
    polled.push_back({fds.listener, listens, 0});
    std::optional<Clock::time_point> first_end;
    for (const PeerSession& session : sessions) {
      polled.push_back({session.fd(), session.events(), 0});
      keep_earlier(first_end, session.end_by());
    }
    const int limit = first_end ? Deadline(*first_end).poll_timeout_ms() : -1;
    if (::poll(polled.data(), polled.size(), limit) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    if (polled[1].revents != 0) answer_datagram(fds.datagrams, token);
    std::size_t at = 3;
    for (auto session = sessions.begin(); session != sessions.end(); ++at) {
      const bool is_ready = polled[at].revents != 0;
      const bool is_late = Clock::now() >= session->end_by();
      const bool goes_on = !is_late && (!is_ready || session->go_on());
      session = goes_on ? std::next(session) : sessions.erase(session);
    }
    if (polled[2].revents == 0) continue;
    UniqueFd peer(::accept4(fds.listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer) continue;
    const int one = 1;
    ::setsockopt(peer.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sessions.emplace_back(std::move(peer), token, node_rank);
  }
}

}  // namespace

std::vector<Greeting> greet_all(const std::vector<Peer>& peers, const std::string& token,
                                std::chrono::milliseconds patience, Deadline deadline) {
  std::vector<Greeting> greetings(peers.size());  // each entry is written by one thread
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
      break;  // no room for more threads: the existing ones do all the work
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

PeerServer::PeerServer(const std::string& address, std::string token, int node_rank)
    : token_(std::move(token)), node_rank_(node_rank) {
  SocketAddress any = resolve({.host = address, .port = 0}).front();
  if (any.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&any.storage)->sin6_addr = in6addr_any;
  } else {
    reinterpret_cast<sockaddr_in*>(&any.storage)->sin_addr.s_addr = INADDR_ANY;
  }
  listener_ = listen_on(any);
  any.set_port(local_address(listener_.get()).port());
  port_ = any.port();
  datagrams_ =
      UniqueFd(::socket(any.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!datagrams_) throw_system_error("socket", errno);
  // If another process has that port for datagrams, ours get no answer, and nothing is reported of
  // them.
  ::bind(datagrams_.get(), reinterpret_cast<const sockaddr*>(&any.storage), any.length);
  const ServedFds fds{listener_.get(), datagrams_.get(), stop_.read_end.get()};
  thread_ =
      start_quiet_thread("doctor-peers", [this, fds] { serve_peers(fds, token_, node_rank_); });
}

PeerServer::~PeerServer() {
  stop_.write_end.reset();
  thread_.join();
}

}  // namespace ddprun::doctor
