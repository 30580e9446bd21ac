// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/ha/frame_relay.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

namespace ddprun::ha::testing {

std::size_t FrameRelay::Way::first_frame() const {
  if (!is_upgraded) {
    const std::size_t end = bytes.find("\r\n\r\n");
    return end == std::string::npos ? std::string::npos : end + 4;
  }
  if (bytes.size() < 2) return std::string::npos;
  const auto byte = [&](std::size_t at) {
    return static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at]));
  };
  std::uint64_t size = byte(1) & 127U;
  std::size_t head = 2;
  if (size >= 126) {
    const std::size_t num = size == 126 ? 2 : 8;
    if (bytes.size() < 2 + num) return std::string::npos;
    size = 0;
    for (std::size_t i = 0; i < num; ++i) size = size << 8 | byte(2 + i);
    head += num;
  }
  if ((byte(1) & 128U) != 0) head += 4;
  return head + size;
}

void FrameRelay::Pair::read(FrameRelay& relay, Way& way) {
  way.from.async_read_some(
      boost::asio::buffer(way.buffer),
      [self = shared_from_this(), &relay, &way](boost::system::error_code error, std::size_t n) {
        if (self->is_closed) return;
        if (error) return self->close();
        way.bytes.append(way.buffer.data(), n);
        self->pump(relay);
        if (!self->is_closed) self->read(relay, way);
      });
}

void FrameRelay::Pair::pump(FrameRelay& relay) {
  for (Way* way : {&up, &down}) {
    while (!is_closed) {
      const std::size_t size = way->first_frame();
      if (size == std::string::npos || way->bytes.size() < size) break;
      if (way->is_of_client && way->is_upgraded && relay.holds_answers_) break;
      if (is_first && relay.num_frames_ >= relay.limit_) {
        relay.is_over_ = true;
        if (relay.then_ == Then::kCut) close();
        break;
      }
      if (is_first) ++relay.num_frames_;
      way->is_upgraded = true;
      way->outgoing += way->bytes.substr(0, size);
      way->bytes.erase(0, size);
    }
    if (!is_closed) write(*way);
  }
}

void FrameRelay::Pair::write(Way& way) {
  if (way.is_writing || way.outgoing.empty()) return;
  way.is_writing = true;
  const auto chunk = std::make_shared<std::string>();
  chunk->swap(way.outgoing);
  boost::asio::async_write(
      way.to, boost::asio::buffer(*chunk),
      [self = shared_from_this(), &way, chunk](boost::system::error_code error, std::size_t) {
        way.is_writing = false;
        if (self->is_closed) return;
        error ? self->close() : self->write(way);
      });
}

void FrameRelay::accept() {
  acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
    if (error) return;
    const auto pair = std::make_shared<Pair>(std::move(socket), io_, pairs_.empty());
    pairs_.push_back(pair);
    pair->leader.async_connect(to_, [this, pair](boost::system::error_code refused) {
      if (pair->is_closed) return;
      if (refused) return pair->close();
      boost::system::error_code ignored;
      for (tcp::socket* end : {&pair->client, &pair->leader}) {
        end->set_option(tcp::no_delay(true), ignored);
      }
      pair->read(*this, pair->up);
      pair->read(*this, pair->down);
    });
    accept();
  });
}

}  // namespace ddprun::ha::testing
