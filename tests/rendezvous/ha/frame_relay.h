// SPDX-License-Identifier: Apache-2.0
// A TCP relay that knows where WebSocket frames end: of one connection it lets so many of them
// through, both ways counted together, and then ends it or holds it. io thread only.
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace ddprun::ha::testing {

class FrameRelay {
 public:
  using tcp = boost::asio::ip::tcp;
  enum class Then { kCut, kHold };

  FrameRelay(boost::asio::io_context& io, std::uint16_t to)
      : io_(io),
        to_(boost::asio::ip::address_v4::loopback(), to),
        acceptor_(io, {to_.address(), 0}) {
    accept();
  }
  FrameRelay(const FrameRelay&) = delete;
  FrameRelay& operator=(const FrameRelay&) = delete;
  ~FrameRelay() {
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    for (const auto& pair : pairs_) pair->close();
  }

  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  // Of the first connection; those after it are let through.
  void limit(std::size_t num_frames, Then then) {
    limit_ = num_frames;
    then_ = then;
  }
  std::size_t num_frames() const { return num_frames_; }  // of the first connection, so far
  bool is_over() const { return is_over_; }               // the limit was reached
  std::size_t num_connections() const { return pairs_.size(); }
  // What the client says is not passed on any more; what is said to it is.
  void hold_answers(bool hold) {
    holds_answers_ = hold;
    for (const auto& pair : pairs_) pair->pump(*this);
  }
  void cut() {
    for (const auto& pair : pairs_) pair->close();
  }
  void release() {
    limit_ = std::numeric_limits<std::size_t>::max();
    for (const auto& pair : pairs_) pair->pump(*this);
  }

 private:
  // One way of a connection: what was read and not passed on.
  struct Way {
    Way(tcp::socket& its_from, tcp::socket& its_to, bool of_client)
        : from(its_from), to(its_to), is_of_client(of_client) {}
    // Size of the first frame in `bytes`, once its head is there; the request or answer before the
    // frames counts as one.
    std::size_t first_frame() const {
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
    tcp::socket &from, &to;
    const bool is_of_client;
    std::string bytes, outgoing;
    std::array<char, 65536> buffer{};
    bool is_upgraded = false, is_writing = false;
  };

  struct Pair : std::enable_shared_from_this<Pair> {
    Pair(tcp::socket its_client, boost::asio::io_context& io, bool first)
        : client(std::move(its_client)), leader(io), is_first(first) {}
    void close() {
      boost::system::error_code ignored;
      is_closed = true;
      client.close(ignored);
      leader.close(ignored);
    }
    void read(FrameRelay& relay, Way& way) {
      way.from.async_read_some(boost::asio::buffer(way.buffer),
                               [self = shared_from_this(), &relay, &way](
                                   boost::system::error_code error, std::size_t n) {
                                 if (self->is_closed) return;
                                 if (error) return self->close();
                                 way.bytes.append(way.buffer.data(), n);
                                 self->pump(relay);
                                 if (!self->is_closed) self->read(relay, way);
                               });
    }
    void pump(FrameRelay& relay) {
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
    void write(Way& way) {
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
    tcp::socket client, leader;
    const bool is_first;
    bool is_closed = false;
    Way up{client, leader, true}, down{leader, client, false};
  };

  void accept() {
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

  boost::asio::io_context& io_;
  const tcp::endpoint to_;
  tcp::acceptor acceptor_;
  std::vector<std::shared_ptr<Pair>> pairs_;  // second owners: their operations
  std::size_t limit_ = std::numeric_limits<std::size_t>::max(), num_frames_ = 0;
  Then then_ = Then::kCut;
  bool is_over_ = false, holds_answers_ = false;
};

}  // namespace ddprun::ha::testing
