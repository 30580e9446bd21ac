// SPDX-License-Identifier: Apache-2.0
// Times all-reduce (float32, sum) of the host communicator between local processes.
//
//   allreduce_bench [--ranks N] [--nodes N] [SIZE_BYTES…]     default: 2 ranks, 1 node, 4096
//   26214400
//
// Prints one JSON line: median, over iterations, of rank 0's time in microseconds, by size, for
// buffers in the arena and plain ones. With --nodes ranks are spread over simulated nodes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/median.h"
#include "common/error.h"
#include "common/socket.h"
#include "rendezvous/store/tcp_store.h"
#include "rendezvous/store_server/store_server.h"
#include "worker_sdk/core/host/host_communicator.h"

namespace {

using namespace ddprun;

struct Plan {
  int num_ranks = 2;
  int num_nodes = 1;
  std::vector<std::size_t> sizes_bytes;
};

Plan read_plan(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--ranks" && i + 1 < argc) {
      plan.num_ranks = std::atoi(argv[++i]);
    } else if (word == "--nodes" && i + 1 < argc) {
      plan.num_nodes = std::atoi(argv[++i]);
    } else {
      plan.sizes_bytes.push_back(std::strtoull(word.c_str(), nullptr, 10));
    }
  }
  if (plan.sizes_bytes.empty()) plan.sizes_bytes = {4096, std::size_t{25} << 20};
  return plan;
}

double median_us(Communicator& world, float* data, std::size_t size_bytes) {
  const std::size_t count = size_bytes / sizeof(float);
  const int iterations = size_bytes <= 65536 ? 3000 : 40;
  std::fill_n(data, count, 0.0f);
  std::vector<double> times;
  for (int i = -5; i < iterations; ++i) {
    world.barrier();
    const Clock::time_point start = Clock::now();
    world.all_reduce({.data = data, .count = count}, ReduceOp::kSum);
    const std::chrono::duration<double, std::micro> time = Clock::now() - start;
    if (i >= 0) times.push_back(time.count());
  }
  return bench::median(std::move(times));
}

void run_rank(const Plan& plan, int rank, std::uint16_t port) {
  store::TcpStore store({.host = "127.0.0.1", .port = port});
  host::HostCommunicatorOptions options;
  options.rank = rank;
  options.size = plan.num_ranks;
  options.node_rank = rank * plan.num_nodes / plan.num_ranks;
  options.node_addr = "127.0.0.1";
  options.timeout = std::chrono::seconds{60};
  const auto world = host::make_host_communicator(store, options);
  std::string arena, plain;
  for (const std::size_t size_bytes : plan.sizes_bytes) {
    const auto buffer = world->allocate(size_bytes);
    std::vector<float> own(size_bytes / sizeof(float));
    const std::string key = (arena.empty() ? "\"" : ", \"") + std::to_string(size_bytes) + "\": ";
    arena +=
        key + std::to_string(median_us(*world, static_cast<float*>(buffer->data()), size_bytes));
    plain += key + std::to_string(median_us(*world, own.data(), size_bytes));
  }
  if (rank == 0) {
    std::printf("{\"arena_us\": {%s}, \"plain_us\": {%s}}\n", arena.c_str(), plain.c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Plan plan = read_plan(argc, argv);
  UniqueFd listener = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
  const std::uint16_t port = local_address(listener.get()).port();
  std::vector<pid_t> children;
  for (int rank = 0; rank < plan.num_ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid != 0) {
      children.push_back(pid);
      continue;
    }
    listener.reset();
    try {
      run_rank(plan, rank, port);
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "allreduce_bench: rank %d: %s\n", rank, error.what());
      ::_exit(1);
    }
  }
  boost::asio::io_context io;
  store::StoreServer server(io, {});
  server.listen(std::move(listener));
  std::thread serving([&] { io.run(); });
  int failed = 0;
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    failed += status != 0;
  }
  io.stop();
  serving.join();
  return failed == 0 ? 0 : 1;
}
