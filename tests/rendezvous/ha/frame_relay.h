// SPDX-License-Identifier: Apache-2.0
// A TCP relay that knows where WebSocket frames end: of one connection it lets so many of them
// through, both ways counted together, and then ends it or holds it. io thread only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
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
    std::size_t first_frame() const;
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
    void read(FrameRelay& relay, Way& way);
    void pump(FrameRelay& relay);
    void write(Way& way);
    tcp::socket client, leader;
    const bool is_first;
    bool is_closed = false;
    Way up{client, leader, true}, down{leader, client, false};
  };

  void accept();

  boost::asio::io_context& io_;
  const tcp::endpoint to_;
  tcp::acceptor acceptor_;
  std::vector<std::shared_ptr<Pair>> pairs_;  // second owners: their operations
  std::size_t limit_ = std::numeric_limits<std::size_t>::max(), num_frames_ = 0;
  Then then_ = Then::kCut;
  bool is_over_ = false, holds_answers_ = false;
};

}  // namespace ddprun::ha::testing
