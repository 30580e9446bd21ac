// SPDX-License-Identifier: Apache-2.0
// One client's connection to a store's server. I/O thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/socket.h"
#include "common/unique_fd.h"
#include "rendezvous/store/request_parser.h"
#include "rendezvous/store/store_state.h"

namespace ddprun::store {

// A buffer that grows with realloc(3), which moves the pages of a large block. A std::string would
// copy 32 MiB while other clients wait.
class InputBytes {
 public:
  std::string_view view() const { return {bytes_.get(), size_}; }
  std::size_t size() const { return size_; }

  // Appends bytes. The room grows beyond `most`, the known need, only if the bytes require it.
  void append(std::string_view bytes, std::size_t most) {
    const std::size_t size = size_ + bytes.size();
    if (size > capacity_) {
      constexpr std::size_t kSlackBytes = 64 << 10;
      grow_to(std::min(std::max(most, size), size + std::max(size, kSlackBytes)));
    }
    std::memcpy(bytes_.get() + size_, bytes.data(), bytes.size());
    size_ = size;
  }

  // Removes the first bytes and frees their memory.
  void drop_front(std::size_t size) {
    if (size == 0) return;
    InputBytes rest;
    if (size < size_) rest.append(view().substr(size), size_ - size);
    std::swap(*this, rest);
  }

 private:
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };

  void grow_to(std::size_t capacity) {
    auto* const bytes = static_cast<char*>(std::realloc(bytes_.get(), capacity));
    if (bytes == nullptr) throw std::bad_alloc();
    static_cast<void>(bytes_.release());
    bytes_.reset(bytes);
    capacity_ = capacity;
  }

  std::unique_ptr<char, Free> bytes_;
  std::size_t size_ = 0, capacity_ = 0;
};

// A socket with the bytes that wait to be parsed and those that wait to be sent. It has buffers
// only while a request is incomplete or the client doesn't read.
class Connection {
 public:
  // `fd` is non-blocking. `peer` is stored in 28 bytes, for log lines after the peer has gone.
  Connection(UniqueFd fd, const SocketAddress& peer, std::uint32_t generation,
             const RequestLimits& limits);

  int fd() const { return fd_.get(); }
  std::uint32_t generation() const { return generation_; }
  std::string peer_text() const;

  RequestParser& parser() { return parser_; }

  // Returns the bytes that are not parsed yet.
  std::string_view input() const { return input_.view(); }
  // Adds bytes. The buffer doubles, but doesn't grow beyond the known need of the request.
  void add_input(std::string_view bytes) { input_.append(bytes, parser_.needed_bytes()); }
  void consume_input(std::size_t size) { input_.drop_front(size); }

  // Sends the bytes, and keeps those that the socket doesn't take now. Returns false if the
  // connection is broken.
  bool send(std::string_view head, const SharedValue& body);

  // Begins a new turn, so that replies may be sent again.
  void begin_turn() { sent_in_turn_ = 0; }

  // Sends kept bytes. Returns false if the connection is broken.
  bool flush();

  bool blocked() const { return output_ != nullptr; }
  std::size_t unsent_bytes() const { return output_ ? output_->bytes : 0; }

  // Returns when the client last took bytes, or began to block. Valid only while blocked().
  Clock::time_point last_progress() const {
    return output_ ? output_->last_progress : Clock::time_point();
  }

  // Returns the bytes in this connection's own buffers, without values that it shares with the
  // store.
  std::size_t buffered_bytes() const { return input_.size() + (output_ ? output_->own_bytes : 0); }

  // The server's own data about this connection.
  std::size_t accounted_bytes = 0;  // its part of the server's sum of buffered_bytes()
  std::uint32_t interest = 0;       // the registered epoll events
  bool closing = false;             // will be closed at the end of the event
  bool held = false;                // not read: it waits in one of the server's lists to go on
  bool is_large = false;            // held because its next request is large; its end is watched
  bool watched = false;             // in the server's list of blocked connections

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
    std::size_t own_bytes = 0;  // those that aren't shared, and the pieces themselves
    Clock::time_point last_progress;
  };

  void keep(std::string_view head, const SharedValue& body, std::size_t already_sent);

  UniqueFd fd_;
  std::uint32_t generation_;
  unsigned char peer_[28];  // a sockaddr_in or sockaddr_in6
  RequestParser parser_;
  InputBytes input_;
  std::size_t sent_in_turn_ = 0;
  std::unique_ptr<Output> output_;
};

}  // namespace ddprun::store
