// SPDX-License-Identifier: Apache-2.0
// PyTorch's C++ client, c10d::TCPStore out of LibTorch, against our server. It does without Catch,
// because LibTorch defines CHECK, too.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/rendezvous/store_server/server_thread.h"

namespace {

void require(bool condition, int line) {
  if (condition) return;
  std::fprintf(stderr, "%s:%d failed\n", __FILE__, line);
  std::_Exit(1);
}
#define REQUIRE(condition) require((condition), __LINE__)

using Bytes = std::vector<std::uint8_t>;

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }

c10::intrusive_ptr<c10d::TCPStore> connect(const ddprun::Endpoint& server) {
  c10d::TCPStoreOptions options;
  options.port = server.port;
  options.numWorkers = 2;
  options.timeout = std::chrono::seconds(10);
  return c10::make_intrusive<c10d::TCPStore>(server.host, options);
}

}  // namespace

int main() {
  ddprun::store::testing::ServerThread server;
  const auto store = connect(server.endpoint());
  store->set("k", bytes("v"));
  REQUIRE(store->get("k") == bytes("v"));
  REQUIRE(store->add("n", 3) == 3);
  REQUIRE(store->compareSet("k", bytes("v"), bytes("w")) == bytes("w"));
  REQUIRE(store->check({"k", "n"}));
  REQUIRE(!store->check({"absent"}));
  store->append("k", bytes("x"));
  store->multiSet({"a", "b"}, {bytes("1"), bytes("2")});
  REQUIRE((store->multiGet({"a", "k"}) == std::vector<Bytes>{bytes("1"), bytes("wx")}));
  REQUIRE(store->deleteKey("a"));
  REQUIRE(store->getNumKeys() == 4);  // one of them is init/
  REQUIRE(store->listKeys().size() == 3);
  store->queuePush("q", bytes("e"));
  REQUIRE(store->queueLen("q") == 1);
  REQUIRE(store->queuePop("q", true) == bytes("e"));
  try {
    store->wait({"absent"}, std::chrono::milliseconds(50));
    REQUIRE(false);
  } catch (const c10::DistStoreError&) {
  }

  // Another client's write ends a wait. A view of it has the same keys.
  const auto other = connect(server.endpoint());
  std::thread writer([&] {
    c10d::PrefixStore("group", other).set("id", bytes("0123"));
    other->barrier("b", 2, std::chrono::seconds(10));
  });
  REQUIRE(c10d::PrefixStore("group", store->clone()).get("id") == bytes("0123"));
  store->barrier("b", 2, std::chrono::seconds(10));
  writer.join();
  std::puts("c10d::TCPStore and ddprun's server agree");
  return 0;
}
