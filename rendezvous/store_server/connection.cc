// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/connection.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ddprun::store {
namespace {

constexpr std::size_t kTurnBytes = 256 << 10;  // sent to a connection in one turn

// Returns the bytes that the socket took, 0 if it is full, -1 if the connection is broken.
ssize_t send_two(int fd, std::string_view head, std::string_view body) {
  iovec parts[2] = {{const_cast<char*>(head.data()), head.size()},
                    {const_cast<char*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  for (;;) {
    const ssize_t sent = body.empty()
                             ? ::send(fd, head.data(), head.size(), MSG_NOSIGNAL | MSG_DONTWAIT)
                             : ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

}  // namespace

Connection::Connection(UniqueFd fd, const SocketAddress& peer, std::uint32_t generation,
                       const RequestLimits& limits)
    : fd_(std::move(fd)), generation_(generation), parser_(limits) {
  static_assert(sizeof peer_ == sizeof(sockaddr_in6));
  std::memcpy(peer_, &peer.storage, sizeof peer_);
}

std::string Connection::peer_text() const {
  SocketAddress address;
  std::memcpy(&address.storage, peer_, sizeof peer_);
  address.length = sizeof peer_;
  return address.text();
}

bool Connection::send(std::string_view head, const SharedValue& body) {
  const std::size_t size = head.size() + (body ? body->size() : 0);
  if (size == 0) return true;
  if (blocked() || sent_in_turn_ >= kTurnBytes) {
    keep(head, body, 0);
    return true;
  }
  // At most a turn's bytes: if the client reads fast, one call might send all of a large value.
  const std::string_view part = body ? std::string_view(*body).substr(0, kTurnBytes) : "";
  const ssize_t sent = send_two(fd_.get(), head, part);
  if (sent < 0) return false;
  sent_in_turn_ += static_cast<std::size_t>(sent);
  if (static_cast<std::size_t>(sent) < size) keep(head, body, static_cast<std::size_t>(sent));
  return true;
}

bool Connection::flush() {
  while (output_ && sent_in_turn_ < kTurnBytes) {
    const std::string_view rest =
        output_->pieces.front().view().substr(output_->sent_of_first, kTurnBytes);
    const ssize_t sent = rest.empty() ? 0 : send_two(fd_.get(), rest, "");
    if (sent < 0) return false;
    if (sent == 0 && !rest.empty()) return true;
    if (sent > 0) output_->last_progress = Clock::now();
    sent_in_turn_ += static_cast<std::size_t>(sent);
    output_->sent_of_first += static_cast<std::size_t>(sent);
    output_->bytes -= static_cast<std::size_t>(sent);
    if (!output_->pieces.front().body) output_->own_bytes -= static_cast<std::size_t>(sent);
    if (output_->sent_of_first < output_->pieces.front().view().size()) continue;
    output_->pieces.pop_front();
    output_->own_bytes -= sizeof(Output::Piece);
    output_->sent_of_first = 0;
    if (output_->pieces.empty()) output_.reset();
  }
  return true;
}

void Connection::keep(std::string_view head, const SharedValue& body, std::size_t already_sent) {
  if (!output_) {
    output_ = std::make_unique<Output>();
    output_->last_progress = Clock::now();
  }
  const std::size_t sent_of_head = std::min(head.size(), already_sent);
  head.remove_prefix(sent_of_head);
  output_->bytes += head.size();
  output_->own_bytes += head.size();
  if (!head.empty()) {
    // Small replies share a piece.
    constexpr std::size_t kJoinBytes = 4096;
    std::deque<Output::Piece>& pieces = output_->pieces;
    if (!pieces.empty() && !pieces.back().body && pieces.back().bytes.size() < kJoinBytes) {
      pieces.back().bytes.append(head);
    } else {
      pieces.push_back({std::string(head), nullptr});
      output_->own_bytes += sizeof(Output::Piece);
    }
  }
  if (!body) return;
  if (output_->pieces.empty()) output_->sent_of_first = already_sent - sent_of_head;
  output_->bytes += body->size() - (already_sent - sent_of_head);
  output_->pieces.push_back({std::string(), body});
  output_->own_bytes += sizeof(Output::Piece);
}

}  // namespace ddprun::store
