// SPDX-License-Identifier: Apache-2.0
// A TCP connection that may speak TLS: what WebSocket and HTTP are read from and written to, either
// way. io thread only.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/role.hpp>
#include <boost/beast/websocket/teardown.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/security/tls.h"

namespace ddprun::security {

class Wire {
 public:
  using executor_type = boost::asio::ip::tcp::socket::executor_type;
  using Handshaken = std::function<void(boost::system::error_code)>;

  Wire(boost::asio::ip::tcp::socket socket)  // NOLINT: a socket is a wire without TLS
      : state_(std::make_unique<State>(std::move(socket))) {}

  executor_type get_executor() { return state_->socket.get_executor(); }
  boost::asio::ip::tcp::socket& socket() { return state_->socket; }

  // From here on TLS. The client expects a certificate of `host`, a name or an address. `done` may
  // be dropped: this object must live until it is called. Closing the socket ends the handshake.
  void async_accept_tls(const TlsContext& context, Handshaken done);
  void async_connect_tls(const TlsContext& context, const std::string& host, Handshaken done);

  bool is_tls() const { return state_->tls.has_value(); }
  // Bytes that only the two ends of this TLS session know (RFC 9266, tls-exporter), to tie a proof
  // to it; empty without TLS.
  std::string binding() const;
  // What is wrong with the peer's certificate, or with ours, and what to do; `error` is of any
  // operation here. Empty where it isn't TLS's.
  std::string tls_trouble(const boost::system::error_code& error) const;

  // Ends whatever is under way.
  void close();

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    const auto begin = [](auto handler, State* state, const auto& into) {
      state->tls ? state->tls->async_read_some(into, std::move(handler))
                 : state->socket.async_read_some(into, std::move(handler));
    };
    return boost::asio::async_initiate<Token, void(boost::system::error_code, std::size_t)>(
        begin, token, state_.get(), buffers);
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    const auto begin = [](auto handler, State* state, const auto& from) {
      state->tls ? state->tls->async_write_some(from, std::move(handler))
                 : state->socket.async_write_some(from, std::move(handler));
    };
    return boost::asio::async_initiate<Token, void(boost::system::error_code, std::size_t)>(
        begin, token, state_.get(), buffers);
  }

 private:
  struct State {
    explicit State(boost::asio::ip::tcp::socket its) : socket(std::move(its)) {}
    boost::asio::ip::tcp::socket socket;
    TlsContext context;
    std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls;
    std::string host;  // as async_connect_tls has it
  };

  std::unique_ptr<State> state_;  // null: moved from
};

// Beast's customisation points: at the end of a WebSocket nothing more is said inside TLS.
template <typename Handler>
void async_teardown(boost::beast::role_type role, Wire& wire, Handler&& handler) {
  boost::beast::websocket::async_teardown(role, wire.socket(), std::forward<Handler>(handler));
}
inline void teardown(boost::beast::role_type role, Wire& wire, boost::system::error_code& error) {
  boost::beast::websocket::teardown(role, wire.socket(), error);
}
inline void beast_close_socket(Wire& wire) { wire.close(); }

}  // namespace ddprun::security
