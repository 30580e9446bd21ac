// SPDX-License-Identifier: Apache-2.0
// A store behind a proxy whose connection is cut every CUT_EVERY messages (0: never). It serves
// tests with foreign clients: it prints the proxy's port, and runs until it is killed.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/rendezvous/store_server/proxied_server.h"

int main(int argc, char** argv) {
  using ddprun::store::testing::ProxiedServer;
  ProxiedServer server(ProxiedServer::Options{.cut_every = argc > 1 ? std::atoi(argv[1]) : 0});
  std::printf("%d\n", server.endpoint().port);
  std::fflush(stdout);
  for (;;) ::pause();
}
