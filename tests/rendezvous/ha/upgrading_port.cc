// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/ha/upgrading_port.h"

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

namespace ddprun::ha::testing {

using boost::asio::ip::tcp;

namespace {
struct Opening {
  explicit Opening(tcp::socket socket)
      : frames(std::make_shared<membership::FrameStream>(std::move(socket),
                                                         membership::FrameStream::Limits())) {}
  boost::beast::flat_buffer buffer;
  boost::beast::http::request<boost::beast::http::string_body> request;
  UpgradingPort::Frames frames;
};
}  // namespace

UpgradingPort::UpgradingPort(boost::asio::io_context& io, std::function<void(const Frames&)> take)
    : acceptor_(io, {boost::asio::ip::address_v4::loopback(), 0}), take_(std::move(take)) {
  accept();
}

void UpgradingPort::close() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
}

void UpgradingPort::accept() {
  acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
    if (error) return;
    socket.set_option(tcp::no_delay(true));
    const auto opening = std::make_shared<Opening>(std::move(socket));
    boost::beast::http::async_read(
        opening->frames->wire(), opening->buffer, opening->request,
        [opening, take = take_](boost::system::error_code broken, std::size_t) {
          if (broken) return;
          opening->frames->async_accept(opening->request, nullptr,
                                        [opening, take](boost::system::error_code refused) {
                                          if (!refused) take(opening->frames);
                                        });
        });
    accept();
  });
}

}  // namespace ddprun::ha::testing
