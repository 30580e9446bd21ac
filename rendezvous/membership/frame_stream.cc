// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/frame_stream.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/core/role.hpp>
#include <boost/beast/websocket/error.hpp>
#include <utility>

#include "common/log.h"

namespace ddprun::membership {

namespace asio = boost::asio;
namespace websocket = boost::beast::websocket;

FrameStream::FrameStream(security::Wire wire, Limits limits)
    : limits_(limits), stream_(std::move(wire)), close_timer_(stream_.get_executor()) {
  stream_.read_message_max(limits.max_message_bytes);
  stream_.auto_fragment(false);
  stream_.text(true);
}

void FrameStream::start(Handlers handlers) {
  if (closed_ || closing_) return;
  handlers_ = std::make_shared<const Handlers>(std::move(handlers));
  if (std::exchange(started_, true)) return;
  stream_.control_callback([this](websocket::frame_type kind, boost::beast::string_view payload) {
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
  stream_.async_read(
      incoming_, [self = shared_from_this()](boost::system::error_code error, std::size_t) {
        if (self->closed_) return;
        if (error) {
          self->end(describe_end(error));
          return;
        }
        if (const auto current = self->handlers_) {
          const bool is_text = self->stream_.got_text();
          if (!is_text && !current->binary) return self->end("it sent a binary frame");
          const auto data = self->incoming_.cdata();
          const std::string_view bytes(static_cast<const char*>(data.data()), data.size());
          is_text ? current->frame(bytes) : current->binary(bytes);
        }
        if (self->closed_) return;
        self->incoming_.consume(self->incoming_.size());
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
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
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
  stream_.binary(outgoing_.front().is_binary);
  stream_.async_write(asio::buffer(outgoing_.front().bytes),
                      [self = shared_from_this()](boost::system::error_code error, std::size_t) {
                        self->writing_ = false;
                        if (self->closed_) return;
                        if (error) {
                          self->end(describe_end(error));
                          return;
                        }
                        self->outgoing_bytes_ -= self->outgoing_.front().bytes.size();
                        self->outgoing_.pop_front();
                        self->write_next();
                      });
}

void FrameStream::ping(const std::string& payload) {
  if (closed_ || closing_ || pinging_) return;
  pinging_ = true;
  const websocket::ping_data data(payload.c_str());
  stream_.async_ping(data, [self = shared_from_this()](boost::system::error_code error) {
    self->pinging_ = false;
    if (!self->closed_ && error) self->end(describe_end(error));
  });
}

void FrameStream::pong(const std::string& payload) {
  if (closed_ || closing_ || pinging_) return;
  pinging_ = true;
  const websocket::ping_data data(payload.c_str());
  stream_.async_pong(data, [self = shared_from_this()](boost::system::error_code error) {
    self->pinging_ = false;
    if (!self->closed_ && error) self->end(describe_end(error));
  });
}

void FrameStream::close_when_sent(std::chrono::milliseconds timeout) {
  if (closed_ || closing_) return;
  closing_ = true;
  handlers_.reset();
  if (outgoing_.empty()) {
    close();
    return;
  }
  close_timer_.expires_after(timeout);
  close_timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (!error) self->close();
  });
}

void FrameStream::close() {
  if (closed_) return;
  closed_ = true;
  handlers_.reset();
  close_timer_.cancel();
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

}  // namespace ddprun::membership
