// SPDX-License-Identifier: Apache-2.0
// A world of host communicators in one process. Each rank is a thread with a communicator of its
// own.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/shared_store.h"
#include "worker_sdk/core/host/host_communicator.h"

namespace ddprun::host {

struct WorldOptions {
  std::vector<int> node_rank_of;  // the node of each rank
  std::chrono::milliseconds timeout{20'000};
  int sockets_per_neighbour = 2;
  std::size_t chunk_bytes = std::size_t{256} << 10;
  bool several_threads = false;
};

// `num_ranks` ranks on one node.
inline WorldOptions one_node(int num_ranks) {
  return {.node_rank_of = std::vector<int>(static_cast<std::size_t>(num_ranks), 0)};
}

inline HostCommunicatorOptions options_of(const WorldOptions& world, int rank) {
  HostCommunicatorOptions options;
  options.rank = rank;
  options.size = static_cast<int>(world.node_rank_of.size());
  options.node_rank = world.node_rank_of[static_cast<std::size_t>(rank)];
  options.node_addr = "127.0.0.1";
  options.key_prefix = "test/";
  options.timeout = world.timeout;
  options.init_timeout = std::chrono::milliseconds{20'000};
  options.sockets_per_neighbour = world.sockets_per_neighbour;
  options.chunk_bytes = world.chunk_bytes;
  options.several_threads = world.several_threads;
  return options;
}

// Runs `body` on every rank. Returns the text of each rank's error; empty: it had none.
inline std::vector<std::string> run_world(const WorldOptions& world,
                                          const std::function<void(Communicator&)>& body) {
  test::SharedStore store;
  std::vector<std::string> errors(world.node_rank_of.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        HostCommunicatorOptions options = options_of(world, static_cast<int>(rank));
        options.split_store = store.clone();
        const auto communicator = make_host_communicator(*options.split_store, options);
        body(*communicator);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// Whether no rank failed.
inline bool all_well(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) {
    if (!error.empty()) return false;
  }
  return true;
}

}  // namespace ddprun::host
