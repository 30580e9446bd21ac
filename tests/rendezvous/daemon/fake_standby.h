// SPDX-License-Identifier: Apache-2.0
// Answers each HTTP request with the same bytes and ends the connection, as a standby does. io
// thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/text.h"
#include "rendezvous/wire/standby_header.h"

namespace ddprun::rendezvous::testing {

inline std::string standby_answer(const std::string& leader = "") {
  return concat("HTTP/1.1 503 Service Unavailable\r\n", membership::kStandbyHeader, ": ", leader,
                "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

class FakeStandby {
 public:
  // Port 0: any.
  explicit FakeStandby(boost::asio::io_context& io, std::string answer = standby_answer(),
                       std::uint16_t port = 0)
      : state_(std::make_shared<State>(io, std::move(answer), port)) {
    state_->accept();
  }
  ~FakeStandby() {
    boost::system::error_code ignored;
    state_->acceptor.close(ignored);
  }
  FakeStandby(const FakeStandby&) = delete;
  FakeStandby& operator=(const FakeStandby&) = delete;

  std::uint16_t port() const { return state_->acceptor.local_endpoint().port(); }
  int num_requests() const { return state_->num_requests; }

 private:
  using tcp = boost::asio::ip::tcp;

  struct State : std::enable_shared_from_this<State> {
    State(boost::asio::io_context& io, std::string its_answer, std::uint16_t port)
        : answer(std::move(its_answer)),
          acceptor(io, {boost::asio::ip::address_v4::loopback(), port}) {}

    void accept() {
      acceptor.async_accept([self = shared_from_this()](auto error, tcp::socket socket) {
        if (error) return;
        self->serve(std::make_shared<tcp::socket>(std::move(socket)));
        self->accept();
      });
    }

    void serve(const std::shared_ptr<tcp::socket>& socket) {
      const auto buffer = std::make_shared<boost::asio::streambuf>();
      boost::asio::async_read_until(
          *socket, *buffer, "\r\n\r\n",
          [self = shared_from_this(), socket, buffer](auto error, std::size_t) {
            if (error) return;
            ++self->num_requests;
            boost::asio::async_write(*socket, boost::asio::buffer(self->answer),
                                     [self, socket](auto, std::size_t) {});
          });
    }

    const std::string answer;
    tcp::acceptor acceptor;
    int num_requests = 0;
  };

  std::shared_ptr<State> state_;  // second owner: the operations under way
};

}  // namespace ddprun::rendezvous::testing
