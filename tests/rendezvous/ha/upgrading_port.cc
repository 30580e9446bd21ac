// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/ha/upgrading_port.h"

#include <utility>

#include "rendezvous/http/exchange.h"

namespace ddprun::ha::testing {

using boost::asio::ip::tcp;

namespace {
struct Opening {
  explicit Opening(tcp::socket socket) : exchange(std::move(socket)) {}
  http::ServerExchange exchange;
  UpgradingPort::Frames frames = nullptr;
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
    opening->exchange.async_read(
        nullptr, [opening, take = take_](boost::system::error_code broken) {
          if (broken) return;
          opening->frames = std::make_shared<membership::FrameStream>(
              std::move(opening->exchange.wire), membership::FrameStream::Limits());
          opening->frames->async_accept(opening->exchange.request, {},
                                        [opening, take](boost::system::error_code refused) {
                                          if (!refused) take(opening->frames);
                                        });
        });
    accept();
  });
}

}  // namespace ddprun::ha::testing
