// SPDX-License-Identifier: Apache-2.0
// One client of a store's server. io thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/socket.h"
#include "common/unique_fd.h"
#include "rendezvous/store/request_parser.h"
#include "rendezvous/store/store_state.h"
#include "rendezvous/store_server/input_bytes.h"

namespace ddprun::store {

// Its socket with what waits to be parsed and what waits to be sent. It holds buffers only while a
// request is partial or the client doesn't read.
class Connection {
 public:
  // `fd` is non-blocking. `peer` is kept in 28 bytes, for log lines after the peer has gone.
  Connection(UniqueFd fd, const SocketAddress& peer, std::uint32_t generation,
             const RequestLimits& limits);

  int fd() const { return fd_.get(); }
  std::uint32_t generation() const { return generation_; }
  std::string peer_text() const;

  RequestParser& parser() { return parser_; }

  // Bytes of requests that are not parsed yet.
  std::string_view input() const { return input_.view(); }
  // Grows no faster than bytes arrive: doubled, but not beyond what the request is known to need.
  void add_input(std::string_view bytes) { input_.append(bytes, parser_.needed_bytes()); }
  void consume_input(std::size_t size) { input_.drop_front(size); }

  // Sends, or keeps what the socket doesn't take now. False: the connection is broken.
  bool send(std::string_view head, const SharedValue& body);

  // Replies may be sent again: others have had their turn.
  void begin_turn() { sent_in_turn_ = 0; }

  // Sends of what is kept. False: broken.
  bool flush();

  bool blocked() const { return output_ != nullptr; }
  std::size_t unsent_bytes() const { return output_ ? output_->bytes : 0; }

  // When the client last took bytes, or began to block. Meaningful while blocked().
  Clock::time_point last_progress() const {
    return output_ ? output_->last_progress : Clock::time_point();
  }

  // The bytes in this connection's own buffers; values that it shares with the store don't count.
  std::size_t buffered_bytes() const { return input_.size() + (output_ ? output_->own_bytes : 0); }

  // Bookkeeping of the server.
  std::size_t accounted_bytes = 0;  // of buffered_bytes(), in the server's sum
  std::uint32_t interest = 0;       // epoll events that it is registered for
  bool closing = false;             // to be closed at the end of the event
  bool held = false;                // not read, in a list of the server of those that wait to go on
  bool is_large = false;            // held for its next request; its end is watched
  bool watched = false;             // in the server's list of those that were blocked

 private:
  struct Output {
    struct Piece {
      std::string bytes;
      SharedValue body;  // instead of bytes
      std::string_view view() const { return body ? std::string_view(*body) : bytes; }
    };
    std::deque<Piece> pieces;
    std::size_t sent_of_first = 0;
    std::size_t bytes = 0;
    std::size_t own_bytes = 0;  // of these, not shared; and of the pieces
    Clock::time_point last_progress;
  };

  void keep(std::string_view head, const SharedValue& body, std::size_t already_sent);

  UniqueFd fd_;
  std::uint32_t generation_;
  unsigned char peer_[28];  // sockaddr_in or sockaddr_in6
  RequestParser parser_;
  InputBytes input_;
  std::size_t sent_in_turn_ = 0;
  std::unique_ptr<Output> output_;
};

}  // namespace ddprun::store
