// SPDX-License-Identifier: Apache-2.0
// Serves one key space on 127.0.0.1 until it is killed: `store_serve [PORT [MAX_TOTAL_BYTES]]`.
// Prints the port as its first line. For tests and benchmarks; users have `ddprund`.
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "common/socket.h"
#include "rendezvous/store_server/store_server.h"

int main(int argc, char** argv) {
  const int port = argc > 1 ? std::atoi(argv[1]) : 0;
  ddprun::store::StoreServerOptions options;
  if (argc > 2) options.max_total_bytes = std::strtoull(argv[2], nullptr, 10);
  boost::asio::io_context io(1);
  ddprun::store::StoreServer server(io, options);
  ddprun::UniqueFd listener =
      ddprun::listen_on(ddprun::resolve({"127.0.0.1", static_cast<std::uint16_t>(port)}).front());
  std::printf("%d\n", ddprun::local_address(listener.get()).port());
  std::fflush(stdout);
  server.listen(std::move(listener));
  boost::asio::signal_set signals(io, SIGTERM, SIGINT);
  signals.async_wait([&io](const boost::system::error_code&, int) { io.stop(); });
  io.run();
  return 0;
}
