// SPDX-License-Identifier: Apache-2.0
// A TCP connection, with or without TLS, for WebSocket and HTTP. I/O thread only.
#pragma once

#include <array>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "rendezvous/security/tls.h"

namespace ddprun::security {

class Wire {
 public:
  using executor_type = boost::asio::ip::tcp::socket::executor_type;
  using Handshaken = std::function<void(boost::system::error_code)>;

  Wire(boost::asio::ip::tcp::socket socket);  // NOLINT: a socket is a wire without TLS
  Wire(Wire&&) noexcept;
  Wire& operator=(Wire&&) noexcept;
  ~Wire();

  executor_type get_executor() { return socket().get_executor(); }
  boost::asio::ip::tcp::socket& socket();

  // Begin TLS. The client expects a certificate for `host`, a name or an address. This object must
  // live until `done` is called. Closing the socket ends the handshake.
  void async_accept_tls(const TlsContext& context, Handshaken done);
  void async_connect_tls(const TlsContext& context, const std::string& host, Handshaken done);

  bool is_tls() const;
  // Returns bytes that only the two ends of this TLS session know (RFC 9266), to bind a proof to
  // it. Empty without TLS.
  std::string binding() const;
  // Returns the fault of TLS or of a certificate behind an operation's error, and what to do;
  // empty: it is no error of TLS.
  std::string tls_trouble(const boost::system::error_code& error) const;

  // Ends all operations under way.
  void close();

  // The functions of Asio's streams.
  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code, std::size_t)>(
        [](Moved done, Wire* wire, const FewBuffers<boost::asio::mutable_buffer>& into) {
          wire->begin_read(into, std::move(done));
        },
        token, this, FewBuffers<boost::asio::mutable_buffer>(buffers));
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code, std::size_t)>(
        [](Moved done, Wire* wire, const FewBuffers<boost::asio::const_buffer>& from) {
          wire->begin_write(from, std::move(done));
        },
        token, this, FewBuffers<boost::asio::const_buffer>(buffers));
  }

 private:
  struct State;
  // One type for all handlers, so that a socket's and a TLS stream's operations are compiled in one
  // file only. Before, they took most of the compile time of each file that reads or writes.
  using Moved = boost::asio::any_completion_handler<void(boost::system::error_code, std::size_t)>;

  // The first buffers of a sequence that aren't empty. One read or write needs no more.
  template <typename Buffer>
  class FewBuffers {
   public:
    template <typename Sequence>
    explicit FewBuffers(const Sequence& all) {
      const auto end = boost::asio::buffer_sequence_end(all);
      for (auto it = boost::asio::buffer_sequence_begin(all); it != end && size_ < kMost; ++it) {
        if (const Buffer buffer(*it); buffer.size() > 0) buffers_[size_++] = buffer;
      }
    }
    const Buffer* begin() const { return buffers_.data(); }
    const Buffer* end() const { return buffers_.data() + size_; }

   private:
    static constexpr std::size_t kMost = 64;  // Asio's own limit
    std::array<Buffer, kMost> buffers_;
    std::size_t size_ = 0;
  };

  void begin_read(const FewBuffers<boost::asio::mutable_buffer>& into, Moved done);
  void begin_write(const FewBuffers<boost::asio::const_buffer>& from, Moved done);

  std::unique_ptr<State> state_;  // null after a move
};

// Returns whether a handshake's `error` means that the peer sent no TLS record of a known version,
// e.g. as a server of another protocol. False also for errors that aren't TLS's.
bool is_no_tls(const boost::system::error_code& error);

}  // namespace ddprun::security
