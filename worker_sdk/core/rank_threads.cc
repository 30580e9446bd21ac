// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/rank_threads.h"

#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "common/env_names.h"
#include "common/quiet_thread.h"
#include "common/random_id.h"
#include "common/throw_error.h"
#include "rendezvous/store/tcp_store.h"
#include "worker_sdk/core/local_store.h"

namespace ddprun {
namespace {

// Keeps the first exception of all threads.
class FirstFailure {
 public:
  void keep(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  void rethrow_if_any() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;  // guarded by mutex_; read when the threads have ended
};

WorkerEnv place_of(int rank, int num_ranks, const Endpoint& master, const std::string& run_id) {
  WorkerEnv env;
  env.rank = env.local_rank = env.device = rank;
  env.world_size = env.local_world_size = num_ranks;
  env.master = master;
  env.node_addr = master.host;
  env.run_id = run_id;
  return env;
}

std::string words_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception";
  }
}

void run_thread(WorkerEnv env,
                const std::function<void(Session& session, Communicator& communicator)>& body,
                const RankThreadOptions& options, FirstFailure& failure) {
  try {
    const auto connect = [master = env.master] {
      return std::make_unique<store::TcpStore>(master);
    };
    Session session(std::move(env), connect, options.nccl_loader);
    const auto communicator = session.make_communicator(options.backend, options.communicator);
    try {
      body(session, *communicator);
    } catch (...) {
      failure.keep(std::current_exception());
      // The abort tells the others, for no process ends that they could watch.
      communicator->abort(words_of(std::current_exception()));
    }
  } catch (...) {
    failure.keep(std::current_exception());
  }
}

}  // namespace

void run_rank_threads(int num_ranks,
                      const std::function<void(Session& session, Communicator& communicator)>& body,
                      const RankThreadOptions& options) {
  if (num_ranks < 1) throw_invalid(num_ranks, " ranks as threads: give 1 or more");
  if (const char* rank = std::getenv(env::kRank)) {
    throw_invalid("ranks as threads: this process is rank ", rank,
                  " of a job already (RANK is set): start the program without a launcher");
  }
  const LocalStore store;
  const std::string run_id = random_id();
  FirstFailure failure;
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.push_back(start_quiet_thread("ddprun-rank", [&, rank] {
        run_thread(place_of(rank, num_ranks, store.endpoint(), run_id), body, options, failure);
      }));
    }
  } catch (...) {
    // The others notice after CommunicatorOptions::init_timeout that one is missing.
    failure.keep(std::current_exception());
  }
  for (std::thread& thread : threads) thread.join();
  failure.rethrow_if_any();
}

}  // namespace ddprun
