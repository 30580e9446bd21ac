// SPDX-License-Identifier: Apache-2.0
// Server CPU per request: `store_load PORT PID OPERATION CONNECTIONS SECONDS` drives the server
// with that process id from CONNECTIONS connections, each with one request on its way. It prints
// one JSON line. OPERATION: ping, add, get, set (each SET followed by a PING), or echo for
// echo_server.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/store/bench_client.h"
#include "rendezvous/store/request.h"

using namespace ddprun;
using namespace ddprun::bench;
using ddprun::store::encoded;
using ddprun::store::Opcode;

namespace {

struct Exchange {
  std::string request;
  std::size_t reply_bytes = 0;
};

Exchange exchange_for(const std::string& operation, int connection) {
  const std::string key = "/key" + std::to_string(connection);
  const std::string value(16, 'v');
  const std::string ping = encoded({.opcode = Opcode::kPing});
  if (operation == "ping") return {ping, 4};
  if (operation == "add") return {encoded({.opcode = Opcode::kAdd, .key = key, .number = 1}), 8};
  if (operation == "get") return {encoded({.opcode = Opcode::kGet, .key = key}), 8 + value.size()};
  if (operation == "set")
    return {encoded({.opcode = Opcode::kSet, .key = key, .value = value}) + ping, 4};
  if (operation == "echo") {
    const std::string message = encoded({.opcode = Opcode::kAdd, .key = key, .number = 1});
    return {message, message.size()};
  }
  die("unknown operation " + operation);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) die("usage: store_load PORT PID ping|add|get|set|echo CONNECTIONS SECONDS");
  const int port = std::atoi(argv[1]), pid = std::atoi(argv[2]);
  const std::string operation = argv[3];
  const int num_connections = std::atoi(argv[4]);
  const double seconds = std::atof(argv[5]);

  struct Connection {
    UniqueFd fd;
    Exchange exchange;
    std::size_t missing_bytes = 0;
  };
  std::vector<Connection> connections;
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  for (int i = 0; i < num_connections; ++i) {
    Connection connection{connect_blocking(port), exchange_for(operation, i), 0};
    if (operation != "echo") shake_hands(connection.fd.get());
    if (operation == "get") {
      send_bytes(connection.fd.get(), exchange_for("set", i).request);
      receive_bytes(connection.fd.get(), exchange_for("set", i).reply_bytes);
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<std::uint32_t>(i);
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, connection.fd.get(), &event);
    connections.push_back(std::move(connection));
  }

  using Clock = std::chrono::steady_clock;
  const auto span =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const Clock::time_point start = Clock::now();
  const double cpu_before = cpu_seconds(pid);
  for (Connection& connection : connections) {
    send_bytes(connection.fd.get(), connection.exchange.request);
    connection.missing_bytes = connection.exchange.reply_bytes;
  }
  std::uint64_t num_requests = 0;
  char buffer[65536];
  epoll_event events[256];
  while (Clock::now() - start < span) {
    const int count = ::epoll_wait(epoll, events, 256, 5000);
    if (count <= 0) die("no answer for 5 s");
    for (int i = 0; i < count; ++i) {
      Connection& connection = connections[events[i].data.u32];
      const ssize_t received = ::recv(connection.fd.get(), buffer, sizeof buffer, 0);
      if (received <= 0) die("the server closed the connection");
      connection.missing_bytes -= static_cast<std::size_t>(received);
      if (connection.missing_bytes > 0) continue;
      ++num_requests;
      send_bytes(connection.fd.get(), connection.exchange.request);
      connection.missing_bytes = connection.exchange.reply_bytes;
    }
  }
  const double cpu = cpu_seconds(pid) - cpu_before;
  const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf(
      "{\"operation\": \"%s\", \"connections\": %d, \"requests\": %llu, \"seconds\": %.3f, "
      "\"requests_per_second\": %.0f, \"server_cpu_us_per_request\": %.4f}\n",
      operation.c_str(), num_connections, static_cast<unsigned long long>(num_requests), elapsed,
      static_cast<double>(num_requests) / elapsed, cpu * 1e6 / static_cast<double>(num_requests));
  return 0;
}
