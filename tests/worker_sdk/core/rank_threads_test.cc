// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of this process, and the store at which they meet.
#include "worker_sdk/core/rank_threads.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "common/env_names.h"
#include "common/error.h"
#include "common/socket.h"
#include "rendezvous/store/tcp_store.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "worker_sdk/core/local_store.h"

using namespace ddprun;
using namespace std::chrono_literals;
using ddprun::test::contains;
using ddprun::test::error_of;

namespace {

const RankThreadOptions kHost{.backend = BackendChoice::kHost, .communicator = {.timeout = 20s}};

}  // namespace

TEST_CASE("run_rank_threads: each thread has its place, a session and a communicator") {
  std::mutex mutex;
  std::set<int> devices;
  std::atomic<int> sum{0};
  run_rank_threads(
      3,
      [&](Session& session, Communicator& communicator) {
        std::int32_t value = session.rank() + 1;
        communicator.all_reduce({.data = &value, .count = 1, .dtype = DType::kInt32},
                                ReduceOp::kSum);
        sum += value;
        const std::lock_guard lock(mutex);
        devices.insert(session.env().device);
      },
      kHost);
  CHECK(sum == 18);
  CHECK(devices == std::set<int>{0, 1, 2});
}

TEST_CASE("run_rank_threads: an exception of one rank ends the others and comes out as it was") {
  std::mutex mutex;
  std::string lost;
  const auto body = [&](Session& session, Communicator& communicator) {
    if (session.rank() == 1) throw std::out_of_range("no such image");
    try {
      communicator.barrier();
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      lost = error.what();
      throw;
    }
  };
  CHECK_THROWS_AS(run_rank_threads(2, body, kHost), std::out_of_range);
  CHECK(contains(lost, "no such image"));
}

TEST_CASE("run_rank_threads: no ranks, and ranks of a launcher, are refused") {
  const auto nothing = [](Session&, Communicator&) {};
  CHECK(contains(error_of([&] { run_rank_threads(0, nothing, kHost); }).what(), "give 1 or more"));
  ::setenv(env::kRank, "2", 1);
  const Error error = error_of([&] { run_rank_threads(2, nothing, kHost); });
  ::unsetenv(env::kRank);
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(contains(error.what(), "rank 2 of a job already"));
}

TEST_CASE("LocalStore: serves c10d to several connections, waits and large values among it") {
  const LocalStore server;
  store::TcpStore store(server.endpoint()), other(server.endpoint());
  const std::string large(3 << 20, 'x');
  std::string received;
  std::thread waiting([&] { received = other.get("late"); });
  store.set("late", large);
  waiting.join();
  CHECK(received == large);
  CHECK(other.add("count", 2) == 2);
  CHECK(store.add("count", 3) == 5);
  store.set_timeout(50ms);
  CHECK(error_of([&] { store.wait({"never"}); }).code() == ErrorCode::kTimeout);
  CHECK(store.check({"late"}));
}

TEST_CASE("LocalStore: a client that speaks something else is closed, and no other one") {
  auto server = std::make_unique<LocalStore>();
  const Endpoint endpoint = server->endpoint();
  store::TcpStore store(endpoint);
  const UniqueFd stranger = connect_to(endpoint, Deadline::after(10s));
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  send_all(stranger.get(), request.data(), request.size(), Deadline::after(10s));
  char byte = 0;
  CHECK(error_of([&] { receive_all(stranger.get(), &byte, 1, Deadline::after(10s)); }).code() ==
        ErrorCode::kConnectionLost);
  store.set("key", "value");
  CHECK(store.get("key") == "value");
  server.reset();
  CHECK(error_of([&] { store.get("key"); }).code() == ErrorCode::kConnectionLost);
}
