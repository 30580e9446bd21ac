// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/frame_stream.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/role.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/websocket/error.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <boost/beast/websocket/teardown.hpp>
#include <utility>

#include "common/text.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::security {

// Beast's customisation points. At the end of a WebSocket nothing more is sent inside TLS.
template <typename Handler>
void async_teardown(boost::beast::role_type role, Wire& wire, Handler&& handler) {
  boost::beast::websocket::async_teardown(role, wire.socket(), std::forward<Handler>(handler));
}
inline void teardown(boost::beast::role_type role, Wire& wire, boost::system::error_code& error) {
  boost::beast::websocket::teardown(role, wire.socket(), error);
}
inline void beast_close_socket(Wire& wire) { wire.close(); }

}  // namespace ddprun::security

namespace ddprun::membership {

namespace asio = boost::asio;
namespace websocket = boost::beast::websocket;

struct FrameStream::Beast {
  explicit Beast(security::Wire wire)
      : stream(std::move(wire)), close_timer(stream.get_executor()) {}
  websocket::stream<security::Wire, false> stream;
  asio::steady_timer close_timer;
  boost::beast::flat_buffer incoming;
  boost::beast::http::response<boost::beast::http::string_body> response;  // of a handshake
};

FrameStream::FrameStream(security::Wire wire, Limits limits)
    : limits_(limits), beast_(std::make_unique<Beast>(std::move(wire))) {
  lift_limit();
  beast_->stream.auto_fragment(false);
  beast_->stream.text(true);
}

FrameStream::~FrameStream() = default;

security::Wire& FrameStream::wire() { return beast_->stream.next_layer(); }

void FrameStream::async_handshake(http::Response& response, const std::string& host,
                                  const std::string& path, const std::string& authorization,
                                  Upgraded done) {
  if (!authorization.empty()) {
    beast_->stream.set_option(
        websocket::stream_base::decorator([authorization](websocket::request_type& request) {
          request.set(boost::beast::http::field::authorization, authorization);
        }));
  }
  beast_->stream.async_handshake(
      beast_->response, host, path,
      [this, &response, done = std::move(done)](boost::system::error_code error) {
        const auto& answer = beast_->response;
        response.status = answer.result_int();
        for (const auto& each : answer) {
          response.fields.add({each.name_string().data(), each.name_string().size()},
                              {each.value().data(), each.value().size()});
        }
        done(error);
      });
}

void FrameStream::async_accept(const http::Request& request, const http::Fields& fields,
                               Upgraded done) {
  beast_->stream.set_option(
      websocket::stream_base::decorator([fields](websocket::response_type& answer) {
        for (const auto& [name, value] : fields) answer.set(name, value);
      }));
  boost::beast::http::request<boost::beast::http::empty_body> asked;
  asked.method_string(request.method);
  asked.target(request.target);
  for (const auto& [name, value] : request.fields) asked.insert(name, value);
  beast_->stream.async_accept(asked, std::move(done));
}

void FrameStream::limit_messages(std::size_t max_bytes) {
  beast_->stream.read_message_max(max_bytes);
}
void FrameStream::lift_limit() { limit_messages(limits_.max_message_bytes); }

void FrameStream::start(Handlers handlers) {
  if (closed_ || closing_) return;
  handlers_ = std::make_shared<const Handlers>(std::move(handlers));
  if (std::exchange(started_, true)) return;
  beast_->stream.control_callback(
      [this](websocket::frame_type kind, boost::beast::string_view payload) {
        const auto current = handlers_;
        if (!current) return;
        if (kind == websocket::frame_type::ping && current->ping) {
          current->ping(std::string_view(payload.data(), payload.size()));
        }
        if (kind == websocket::frame_type::pong && current->pong) {
          current->pong(std::string_view(payload.data(), payload.size()));
        }
      });
  read_next();
}

void FrameStream::read_next() {
  beast_->stream.async_read(
      beast_->incoming, [self = shared_from_this()](boost::system::error_code error, std::size_t) {
        if (self->closed_) return;
        if (error) return self->end(describe_end(error));
        if (const auto current = self->handlers_) {
          const bool is_text = self->beast_->stream.got_text();
          if (!is_text && !current->binary) return self->end("it sent a binary frame");
          const auto data = self->beast_->incoming.cdata();
          const std::string_view bytes(static_cast<const char*>(data.data()), data.size());
          is_text ? current->frame(bytes) : current->binary(bytes);
        }
        if (self->closed_) return;
        self->beast_->incoming.consume(self->beast_->incoming.size());
        self->read_next();
      });
}

void FrameStream::send(std::string frame) { queue({std::move(frame), false}); }
void FrameStream::send_binary(std::string frame) { queue({std::move(frame), true}); }

void FrameStream::queue(Frame frame) {
  if (closed_ || closing_) return;
  outgoing_bytes_ += frame.bytes.size();
  outgoing_.push_back(std::move(frame));
  if (outgoing_bytes_ > limits_.max_queued_bytes) {
    asio::post(beast_->stream.get_executor(), [self = shared_from_this()] {
      self->end(concat("it does not read: ", self->outgoing_bytes_, " bytes wait for it"));
    });
    return;
  }
  write_next();
}

void FrameStream::write_next() {
  if (closed_ || writing_) return;
  if (outgoing_.empty()) {
    if (closing_) close();
    return;
  }
  writing_ = true;
  beast_->stream.binary(outgoing_.front().is_binary);
  beast_->stream.async_write(
      asio::buffer(outgoing_.front().bytes),
      [self = shared_from_this()](boost::system::error_code error, std::size_t) {
        self->writing_ = false;
        if (self->closed_) return;
        if (error) return self->end(describe_end(error));
        self->outgoing_bytes_ -= self->outgoing_.front().bytes.size();
        self->outgoing_.pop_front();
        self->write_next();
      });
}

void FrameStream::ping(const std::string& payload) {
  if (!may_ping()) return;
  beast_->stream.async_ping(websocket::ping_data(payload.c_str()), pinged());
}

void FrameStream::pong(const std::string& payload) {
  if (!may_ping()) return;
  beast_->stream.async_pong(websocket::ping_data(payload.c_str()), pinged());
}

bool FrameStream::may_ping() { return !closed_ && !closing_ && !std::exchange(pinging_, true); }

FrameStream::Upgraded FrameStream::pinged() {
  return [self = shared_from_this()](boost::system::error_code error) {
    self->pinging_ = false;
    if (!self->closed_ && error) self->end(describe_end(error));
  };
}

void FrameStream::close_when_sent(std::chrono::milliseconds timeout) {
  if (closed_ || closing_) return;
  closing_ = true;
  handlers_.reset();
  if (outgoing_.empty()) return close();
  run_after(beast_->close_timer, timeout, [self = shared_from_this()] { self->close(); });
}

void FrameStream::close() {
  if (closed_) return;
  closed_ = true;
  handlers_.reset();
  beast_->close_timer.cancel();
  wire().close();
}

void FrameStream::end(const std::string& reason) {
  if (closed_) return;
  const auto current = handlers_;
  close();
  if (current && current->ended) current->ended(reason);
}

std::string describe_end(const boost::system::error_code& error) {
  if (error == asio::error::eof || error == websocket::error::closed ||
      error == asio::ssl::error::stream_truncated) {
    return "the peer closed the connection";
  }
  if (error == asio::error::connection_reset || error == asio::error::broken_pipe) {
    return "the peer reset the connection";
  }
  if (error == websocket::error::message_too_big) return "a message is larger than allowed";
  return error.message();
}

bool is_declined(const boost::system::error_code& error) {
  return error == websocket::error::upgrade_declined;
}

bool is_dropped(const boost::system::error_code& error) {
  return error == asio::error::eof || error == asio::error::connection_reset ||
         error == asio::error::broken_pipe || error == asio::ssl::error::stream_truncated ||
         error == websocket::error::closed || http::trouble_of(error) == http::Trouble::kEnded;
}

}  // namespace ddprun::membership
