// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/asio/connect.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <optional>

#include "common/socket.h"
#include "tests/support/catch.h"

using namespace ddprun;
using boost::asio::ip::tcp;

TEST_CASE("connect_to_first: takes the first that answers, by a socket that children don't inherit",
          "[net]") {
  const UniqueFd listener = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
  UniqueFd bound_only(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto nobody = resolve({.host = "127.0.0.1", .port = 0}).front();
  REQUIRE(::bind(bound_only.get(), reinterpret_cast<sockaddr*>(&nobody.storage), nobody.length) == 0);
  const auto at = [](int fd) {
    return tcp::endpoint(boost::asio::ip::make_address("127.0.0.1"), local_address(fd).port());
  };
  boost::asio::io_context io;
  tcp::socket socket(io);
  std::optional<boost::system::error_code> error;
  connect_to_first(socket, {at(bound_only.get()), at(listener.get())},
                   [&](const boost::system::error_code& said) { error = said; });
  io.run();
  REQUIRE(error == boost::system::error_code());
  CHECK(socket.remote_endpoint() == at(listener.get()));
  CHECK(::fcntl(socket.native_handle(), F_GETFD) == FD_CLOEXEC);

  connect_to_first(socket, {at(bound_only.get())},
                   [&](const boost::system::error_code& said) { error = said; });
  io.restart();
  io.run();
  CHECK(error == boost::asio::error::connection_refused);
}
