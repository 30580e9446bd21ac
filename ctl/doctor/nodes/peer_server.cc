// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/peer_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/quiet_thread.h"
#include "common/socket.h"
#include "ctl/doctor/nodes/peer_protocol.h"

namespace ddprun::doctor {
namespace {

constexpr std::chrono::seconds kSessionLimit{20};  // of one connection, whatever it asks for
constexpr std::size_t kMostSessions = 256;
constexpr std::size_t kBlockBytes = std::size_t{256} << 10;

std::int64_t wall_nanoseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::uint64_t nanoseconds_since(Clock::time_point begin) {
  const auto passed = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
  return static_cast<std::uint64_t>(passed.count());
}

// One connection: its request, then what that asks for.
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

  // False: it is over.
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
    const std::int64_t came = wall_nanoseconds();
    request_.kind = static_cast<PeerRequestKind>(text_[kTokenBytes]);
    request_.num_bytes = number_at(text_, kTokenBytes + 1, 8);
    request_.nanoseconds = number_at(text_, kTokenBytes + 9, 8);
    is_asked_ = true;
    begun_ = Clock::now();
    if (request_.kind != PeerRequestKind::kGreet) return true;
    put_number(answer_, static_cast<std::uint64_t>(node_rank_), 4);
    put_number(answer_, static_cast<std::uint64_t>(came), 8);
    put_number(answer_, static_cast<std::uint64_t>(wall_nanoseconds()), 8);
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
    block_.resize(kBlockBytes);
    const SocketStep step = receive_step(fd_.get(), block_.data(), block_.size());
    if (!step.ended.empty()) return false;
    if (is_answered_) return true;  // what was on its way: closing now could cost the answer
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
    block_.resize(kBlockBytes);
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

  std::string text_;  // of the request, so far
  bool is_asked_ = false, is_answered_ = false;
  PeerRequest request_;
  Clock::time_point begun_;
  std::uint64_t num_moved_ = 0;
  std::string answer_;  // what is still to be sent
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
    // Of too many at once the later ones wait in the listener's queue.
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
  // Where somebody has that port for datagrams, ours have no answer, and nothing is said of them.
  ::bind(datagrams_.get(), reinterpret_cast<const sockaddr*>(&any.storage), any.length);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("pipe", errno);
  stop_reader_ = UniqueFd(ends[0]);
  stop_writer_ = UniqueFd(ends[1]);
  const ServedFds fds{listener_.get(), datagrams_.get(), stop_reader_.get()};
  thread_ =
      start_quiet_thread("doctor-peers", [this, fds] { serve_peers(fds, token_, node_rank_); });
}

PeerServer::~PeerServer() {
  stop_writer_.reset();
  thread_.join();
}

}  // namespace ddprun::doctor
