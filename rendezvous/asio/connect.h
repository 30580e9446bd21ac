// SPDX-License-Identifier: Apache-2.0
// Makes a TCP connection by Asio that child processes don't inherit.
#pragma once

#include <fcntl.h>

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace ddprun {

// Converts SocketAddresses (common/socket.h) to Asio's type, in the same order.
template <typename Address>
std::vector<boost::asio::ip::tcp::endpoint> endpoints_of(const std::vector<Address>& addresses) {
  std::vector<boost::asio::ip::tcp::endpoint> endpoints;
  for (const Address& address : addresses) {
    auto& endpoint = endpoints.emplace_back();
    endpoint.resize(address.length);
    std::memcpy(endpoint.data(), &address.storage, address.length);
  }
  return endpoints;
}

// Connects to the first of `targets` that takes the connection; there must be at least one. Then
// calls done(error) with the error of the last one tried. asio::async_connect() isn't used, since
// it opens sockets that children inherit. While a child lived, the peer would not notice this
// process' end.
template <typename Done>
void connect_to_first(boost::asio::ip::tcp::socket& socket,
                      std::vector<boost::asio::ip::tcp::endpoint> targets, Done done,
                      std::size_t at = 0) {
  const auto target = targets[at];
  boost::system::error_code ignored;
  socket.close(ignored);
  socket.open(target.protocol(), ignored);  // else async_connect() reports the error
  if (socket.is_open()) ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
  socket.async_connect(target, [&socket, targets = std::move(targets), done = std::move(done),
                                at](const boost::system::error_code& error) mutable {
    const bool is_last = at + 1 == targets.size();
    if (!error || is_last || error == boost::asio::error::operation_aborted) return done(error);
    connect_to_first(socket, std::move(targets), std::move(done), at + 1);
  });
}

}  // namespace ddprun
