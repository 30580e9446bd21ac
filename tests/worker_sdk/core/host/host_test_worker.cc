// SPDX-License-Identifier: Apache-2.0
// A rank, or the store, of the tests that put ranks on several hosts (two_hosts_test.py).
//
//   host_test_worker serve ADDRESS                         prints the port, serves until its input
//   ends host_test_worker check|forever RANK SIZE NODE ADDRESS MASTER PORT
//
// check prints "ok" and a digest of the results. forever prints "running", then the error with
// which it ends.
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/socket.h"
#include "rendezvous/store/tcp_store.h"
#include "rendezvous/store_server/store_server.h"
#include "worker_sdk/core/host/host_communicator.h"

namespace {

using namespace ddprun;

int serve(const std::string& address) {
  UniqueFd listener = listen_on(resolve({.host = address, .port = 0}).front());
  std::printf("%d\n", local_address(listener.get()).port());
  std::fflush(stdout);
  boost::asio::io_context io;
  store::StoreServer server(io, {});
  server.listen(std::move(listener));
  std::thread serving([&] { io.run(); });
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  io.stop();
  serving.join();
  return 0;
}

void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("wrong result: ") + what);
}

// The FNV-1a hash of values whose sums depend on the order of addition.
std::uint64_t digest(Communicator& world) {
  std::vector<float> values(1'000'003);
  unsigned state = static_cast<unsigned>(world.rank()) + 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state) * 1e-3f - 2e6f;
  }
  world.all_reduce({.data = values.data(), .count = values.size()}, ReduceOp::kSum);
  std::uint64_t hash = 14695981039346656037ull;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (std::size_t i = 0; i < values.size() * sizeof(float); ++i) {
    hash = (hash ^ bytes[i]) * 1099511628211ull;
  }
  return hash;
}

void check(Communicator& world) {
  const int size = world.size();
  const double rank_sum = size * (size - 1) / 2.0;
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{700'001}}) {
    std::vector<double> values(count, world.rank());
    world.all_reduce({.data = values.data(), .count = count, .dtype = DType::kFloat64},
                     ReduceOp::kSum);
    for (const double value : values) expect(value == rank_sum, "all_reduce");
    for (int root = 0; root < size; ++root) {
      std::vector<int> numbers(count, world.rank());
      world.broadcast({.data = numbers.data(), .count = count, .dtype = DType::kInt32}, root);
      for (const int number : numbers) expect(number == root, "broadcast");
    }
    std::vector<int> own(count, world.rank()), all(count * static_cast<std::size_t>(size));
    world.all_gather({.data = own.data(), .count = count, .dtype = DType::kInt32},
                     {.data = all.data(), .count = all.size(), .dtype = DType::kInt32});
    for (std::size_t i = 0; i < all.size(); ++i) {
      expect(all[i] == static_cast<int>(i / count), "all_gather");
    }
    world.reduce_scatter({.data = all.data(), .count = all.size(), .dtype = DType::kInt32},
                         {.data = own.data(), .count = count, .dtype = DType::kInt32},
                         ReduceOp::kSum);
    for (const int number : own) expect(number == size * world.rank(), "reduce_scatter");
    const int next = (world.rank() + 1) % size, previous = (world.rank() + size - 1) % size;
    std::vector<int> received(count);
    const std::vector<int> sent(count, world.rank());
    const WorkPtr sending =
        world.send({.data = const_cast<int*>(sent.data()), .count = count, .dtype = DType::kInt32},
                   next, {.async = true});
    world.recv({.data = received.data(), .count = count, .dtype = DType::kInt32}, previous);
    sending->wait();
    for (const int number : received) expect(number == previous, "recv");
  }
  std::printf("ok %016llx\n", static_cast<unsigned long long>(digest(world)));
}

void run_for_ever(Communicator& world) {
  std::vector<float> values(300'000, 1.0f);
  for (int i = 0;; ++i) {
    world.all_reduce({.data = values.data(), .count = values.size()}, ReduceOp::kAverage);
    if (i == 3) {
      std::printf("running\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "serve") == 0) return serve(argv[2]);
  if (argc != 8) return 2;
  try {
    store::TcpStore store(
        {.host = argv[6], .port = static_cast<std::uint16_t>(std::atoi(argv[7]))});
    host::HostCommunicatorOptions options;
    options.rank = std::atoi(argv[2]);
    options.size = std::atoi(argv[3]);
    options.node_rank = std::atoi(argv[4]);
    options.node_addr = argv[5];
    options.key_prefix = "two-hosts/";
    options.timeout = std::chrono::minutes{10};  // so long that no lost rank is found by it
    options.init_timeout = std::chrono::seconds{30};
    const auto world = host::make_host_communicator(store, options);
    std::strcmp(argv[1], "check") == 0 ? check(*world) : run_for_ever(*world);
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
