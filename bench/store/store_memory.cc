// SPDX-License-Identifier: Apache-2.0
// `store_memory PORT PID CONNECTIONS`: the server's resident memory as it is, and what each of
// CONNECTIONS idle connections adds after one round of SET and GET. Prints one JSON line.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/store/bench_client.h"
#include "common/process_facts.h"
#include "rendezvous/store/request.h"

using namespace ddprun;
using namespace ddprun::bench;
using ddprun::store::encoded;
using ddprun::store::Opcode;

int main(int argc, char** argv) {
  if (argc != 4) die("usage: store_memory PORT PID CONNECTIONS");
  const int port = std::atoi(argv[1]), pid = std::atoi(argv[2]);
  const int num_connections = std::atoi(argv[3]);
  const std::size_t empty = resident_bytes(pid).value_or(0);
  const std::string exchange =
      encoded({.opcode = Opcode::kSet, .key = "/k", .value = std::string(1000, 'v')}) +
      encoded({.opcode = Opcode::kGet, .key = "/k"});
  std::vector<UniqueFd> connections;
  for (int i = 0; i < num_connections; ++i) {
    connections.push_back(connect_blocking(port));
    shake_hands(connections.back().get());
    send_bytes(connections.back().get(), exchange);
    receive_bytes(connections.back().get(), 8 + 1000);
  }
  const std::size_t full = resident_bytes(pid).value_or(0);
  std::printf(
      "{\"connections\": %d, \"empty_bytes\": %zu, \"full_bytes\": %zu, "
      "\"bytes_per_connection\": %.0f}\n",
      num_connections, empty, full,
      (static_cast<double>(full) - static_cast<double>(empty)) / num_connections);
  return 0;
}
