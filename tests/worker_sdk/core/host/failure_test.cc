// SPDX-License-Identifier: Apache-2.0
// Deadlines, aborts, mismatched calls, strangers on the port: each ends in the right error.
#include <poll.h>
#include <sys/socket.h>

#include <barrier>
#include <mutex>

#include "common/error.h"
#include "common/socket.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/worker_sdk/core/host/rank_threads.h"
#include "worker_sdk/core/host/bootstrap.h"

using namespace ddprun;
using namespace ddprun::host;
using ddprun::test::code_of;
using namespace std::chrono_literals;
using Catch::Matchers::StartsWith;
using ddprun::test::Contains;

namespace {

TensorView view(std::vector<float>& values) {
  return {.data = values.data(), .count = values.size()};
}

}  // namespace

TEST_CASE("host communicator: an expired deadline names the rank that is missing") {
  WorldOptions world = one_node(3);
  world.timeout = 150ms;
  std::barrier all_failed(3);
  const auto errors = run_world(world, [&](Communicator& ranks) {
    std::vector<float> values(10, 1.0f);
    std::string what;
    std::optional<ErrorCode> code = ErrorCode::kTimeout;
    if (ranks.rank() != 1) {
      code = code_of([&] { ranks.all_reduce(view(values), ReduceOp::kSum); }, &what);
    }
    all_failed.arrive_and_wait();
    if (code != ErrorCode::kTimeout) throw std::runtime_error("no time-out");
    if (!what.empty()) throw std::runtime_error(what);
  });
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    CHECK_THAT(errors[rank], Contains("timed out after 150 ms: waiting for rank 1"));
    CHECK_THAT(errors[rank], !Contains("rank 1,") && StartsWith("all_reduce(float32"));
  }
  CHECK(errors[1] == "");
}

TEST_CASE("host communicator: one of two threads that call it at once is refused") {
  std::barrier one_is_refused(2);
  const auto errors = run_world(one_node(2), [&](Communicator& ranks) {
    std::vector<float> values(10, 1.0f), others(10, 1.0f);
    if (ranks.rank() == 1) {
      one_is_refused.arrive_and_wait();
      ranks.all_reduce(view(values), ReduceOp::kSum);
      return;
    }
    std::string what;
    const auto call = [&](std::vector<float>& buffer) {
      const auto code = code_of([&] { ranks.all_reduce(view(buffer), ReduceOp::kSum); }, &what);
      if (code == ErrorCode::kInvalidArgument) one_is_refused.arrive_and_wait();
    };
    std::thread second(call, std::ref(others));
    call(values);
    second.join();
    if (values[0] + others[0] != 3)
      throw std::runtime_error("one sum is there, one buffer is not touched");
    throw std::runtime_error(what);
  });
  CHECK_THAT(errors[0], StartsWith("two threads call one communicator at the same time"));
  CHECK(errors[1] == "");
}

TEST_CASE("host communicator: a deadline between nodes names the rank waited for") {
  WorldOptions world{.node_rank_of = {0, 1}};
  std::barrier all_failed(2);
  const auto errors = run_world(world, [&](Communicator& ranks) {
    std::vector<float> values(10'000, 1.0f);
    std::string what;
    if (ranks.rank() == 0) {
      code_of([&] { ranks.all_reduce(view(values), ReduceOp::kSum, {.timeout = 150ms}); }, &what);
    }
    all_failed.arrive_and_wait();
    if (!what.empty()) throw std::runtime_error(what);
  });
  CHECK_THAT(errors[0], Contains("timed out after 150 ms: waiting for rank 1"));
  CHECK(errors[1] == "");
}

TEST_CASE("host communicator: a message that waits for another's connection keeps its deadline") {
  std::barrier everyone(2);
  const Clock::time_point start = Clock::now();
  const auto errors = run_world({.node_rank_of = {0, 1}}, [&](Communicator& ranks) {
    std::vector<float> in(10), out(10);
    std::optional<ErrorCode> code = ErrorCode::kTimeout;
    std::string what;
    WorkPtr received;
    // Only the lower rank makes the connection, and it never does.
    if (ranks.rank() == 1) received = ranks.recv(view(in), 0, {.async = true, .timeout = 60s});
    // When these barriers are over, the recv waits for the connection in its own thread.
    for (int i = 0; i < 200; ++i) ranks.barrier();
    if (ranks.rank() == 1) {
      code = code_of([&] { ranks.send(view(out), 0, {.timeout = 150ms}); }, &what);
    }
    everyone.arrive_and_wait();
    if (code != ErrorCode::kTimeout) throw std::runtime_error("no time-out: " + what);
    if (received && received->is_completed()) throw std::runtime_error("the recv ended, too");
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(Clock::now() - start < 20s);
}

TEST_CASE("host communicator: ranks that don't come to the start are named") {
  test::SharedStore store;
  HostCommunicatorOptions options = options_of(one_node(3), 1);
  options.init_timeout = 100ms;
  store.set("test/host/0", "");  // rank 0 came, rank 2 did not
  std::string what;
  const auto code = code_of([&] { make_host_communicator(store, options); }, &what);
  CHECK(code == ErrorCode::kTimeout);
  CHECK_THAT(what, Contains("missing: rank 2"));
  CHECK(store.timeout() == 300s);  // the time-out is as before
}

TEST_CASE("host communicator: every call after a failure fails at once") {
  WorldOptions world = one_node(2);
  std::barrier all_failed(2);
  const auto errors = run_world(world, [&](Communicator& ranks) {
    std::vector<float> values(10, 1.0f);
    if (ranks.rank() == 0) {
      code_of([&] { ranks.barrier({.timeout = 50ms}); });
      std::string what;
      const auto code = code_of([&] { ranks.all_reduce(view(values), ReduceOp::kSum); }, &what);
      if (code != ErrorCode::kTimeout) throw std::runtime_error("not the same failure");
      if (what.find("all_reduce(float32 × 10, sum) #2 can't start: barrier #1 on rank 0 timed out "
                    "after 50 ms") != 0) {
        throw std::runtime_error("not at once: " + what);
      }
      const WorkPtr work = ranks.all_reduce(view(values), ReduceOp::kSum, {.async = true});
      if (code_of([&] { work->wait(); }) != ErrorCode::kTimeout) {
        throw std::runtime_error("not the same failure from wait()");
      }
    }
    all_failed.arrive_and_wait();
  });
  CHECK(all_well(errors));
}

TEST_CASE("host communicator: abort() from another thread ends the call here and on all ranks") {
  const auto layout =
      GENERATE(std::vector<int>{0, 0, 0}, std::vector<int>{0, 0, 1}, std::vector<int>{0, 1, 1});
  const Clock::time_point start = Clock::now();
  std::barrier everyone(3);
  std::vector<std::string> texts(3);
  std::vector<std::optional<ErrorCode>> codes(3);
  const auto errors = run_world({.node_rank_of = layout}, [&](Communicator& ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    ranks.barrier();
    everyone.arrive_and_wait();  // no rank is inside the barrier any more
    std::thread aborter;
    if (rank == 2) {
      aborter = std::thread([&] {
        ranks.abort("the user pressed stop");
        ranks.abort("again");
      });
    }
    codes[rank] = code_of(
        [&] {
          for (;;) ranks.barrier();
        },
        &texts[rank]);
    if (aborter.joinable()) aborter.join();
    everyone.arrive_and_wait();
  });
  CHECK(all_well(errors));
  CHECK(codes[2] == ErrorCode::kAborted);
  CHECK_THAT(texts[2], Contains("the user pressed stop"));
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    CHECK(codes[rank] == ErrorCode::kPeerLost);
    CHECK_THAT(texts[rank], StartsWith("rank 2 aborted") && Contains("the user pressed stop"));
  }
  CHECK(Clock::now() - start < 5s);
}

TEST_CASE("host communicator: different calls are an error on every rank, not garbage") {
  const auto layout = GENERATE(std::vector<int>{0, 0}, std::vector<int>{0, 1});
  std::barrier everyone(2);
  const auto errors = run_world({.node_rank_of = layout}, [&](Communicator& ranks) {
    std::vector<float> values(100, 1.0f);
    const auto size = static_cast<std::size_t>(ranks.rank() == 0 ? 100 : 99);
    std::string what;
    const auto code = code_of(
        [&] { ranks.all_reduce({.data = values.data(), .count = size}, ReduceOp::kSum); }, &what);
    everyone.arrive_and_wait();
    if (code != ErrorCode::kProtocol) throw std::runtime_error("not found: " + what);
    if (what.find("float32 × 99") == std::string::npos ||
        what.find("float32 × 100") == std::string::npos) {
      throw std::runtime_error("unclear: " + what);
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host communicator: a receive that doesn't match its send is an error") {
  const auto layout = GENERATE(std::vector<int>{0, 0}, std::vector<int>{0, 1});
  std::barrier everyone(2);
  const auto errors = run_world({.node_rank_of = layout}, [&](Communicator& ranks) {
    std::vector<float> values(100, 1.0f);
    if (ranks.rank() == 0) {
      ranks.send(view(values), 1);
    } else {
      const auto code = code_of([&] { ranks.recv({.data = values.data(), .count = 50}, 0); });
      if (code != ErrorCode::kProtocol) throw std::runtime_error("not found");
    }
    everyone.arrive_and_wait();
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host communicator: an impossible call is refused before anything is sent") {
  const auto errors = run_world(one_node(2), [](Communicator& ranks) {
    std::vector<float> values(10);
    const auto refused = [&](const std::function<void()>& call) {
      if (code_of(call) != ErrorCode::kInvalidArgument) throw std::runtime_error("accepted");
    };
    refused([&] { ranks.broadcast(view(values), 2); });
    refused([&] { ranks.send(view(values), ranks.rank()); });
    refused([&] { ranks.all_gather(view(values), view(values)); });
    const auto part = [&](std::size_t first, std::size_t count) {
      return TensorView{.data = values.data() + first, .count = count};
    };
    const std::size_t other = ranks.rank() == 0 ? 4 : 0;  // the first element of the peer's part
    refused([&] { ranks.all_gather(part(other, 4), part(0, 8)); });
    refused([&] { ranks.all_gather(part(2, 4), part(0, 8)); });
    refused([&] { ranks.reduce_scatter(part(0, 8), part(other, 4), ReduceOp::kSum); });
    refused([&] { ranks.all_reduce({.data = nullptr, .count = 1}, ReduceOp::kSum); });
    refused([&] {
      ranks.all_reduce({.data = values.data(), .count = 1, .device = {Device::Kind::kCuda, 0}},
                       ReduceOp::kSum);
    });
    ranks.all_reduce(view(values), ReduceOp::kSum);  // the ranks are still in step
  });
  for (const std::string& error : errors) CHECK(error == "");
  test::SharedStore store;
  HostCommunicatorOptions options;
  options.rank = 2;
  options.size = 2;
  CHECK(code_of([&] { make_host_communicator(store, options); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("host communicator: a rank that leaves early is told apart from one that was lost") {
  std::vector<std::string> texts(2);
  const auto errors = run_world(one_node(2), [&](Communicator& ranks) {
    std::vector<float> values(10, 1.0f);
    ranks.all_reduce(view(values), ReduceOp::kSum);
    if (ranks.rank() == 0) return;
    if (code_of([&] { ranks.barrier(); }, &texts[1]) != ErrorCode::kPeerLost) {
      throw std::runtime_error("no error");
    }
  });
  CHECK(all_well(errors));
  CHECK_THAT(texts[1], StartsWith("rank 0 has destroyed its communicator"));
}

TEST_CASE("host communicator: a rank on another node that has left is not taken for lost") {
  std::barrier one_left(3), two_done(2);
  std::vector<std::string> errors(3);
  test::SharedStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto own_store = store.clone();
        auto ranks =
            make_host_communicator(*own_store, options_of({.node_rank_of = {0, 1, 2}}, rank));
        ranks->barrier();
        if (rank == 1) ranks.reset();
        one_left.arrive_and_wait();
        if (rank == 1) return;
        // This is long enough to hear of a lost rank, if there were one.
        std::vector<float> values(10);
        std::string what;
        const auto code =
            code_of([&] { ranks->recv(view(values), 2 - rank, {.timeout = 300ms}); }, &what);
        if (code != ErrorCode::kTimeout) throw std::runtime_error(what);
        two_done.arrive_and_wait();
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
        one_left.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host communicator: destroying it ends the operations that are open, here and there") {
  const auto layout = GENERATE(std::vector<int>{0, 0}, std::vector<int>{0, 1});
  const Clock::time_point start = Clock::now();
  WorkPtr open;
  std::vector<float> never(10);
  std::string there;
  std::optional<ErrorCode> code_there;
  const auto errors = run_world({.node_rank_of = layout}, [&](Communicator& ranks) {
    if (ranks.rank() == 0) {
      open = ranks.recv(view(never), 1, {.async = true, .timeout = 60s});
      ranks.barrier();
      return;
    }
    ranks.barrier();
    code_there = code_of(
        [&] {
          for (;;) ranks.barrier({.timeout = 60s});
        },
        &there);
  });
  for (const std::string& error : errors) CHECK(error == "");
  REQUIRE(open);
  CHECK(code_of([&] { open->wait(); }) == ErrorCode::kAborted);
  CHECK(code_there == ErrorCode::kPeerLost);
  CHECK_THAT(there, StartsWith("rank 0 aborted") && Contains("operations under way"));
  CHECK(Clock::now() - start < 20s);
}

TEST_CASE("host communicator: strangers on the TCP port are dropped and disturb nobody") {
  test::SharedStore store;
  const WorldOptions world{.node_rank_of = {0, 1}};
  std::barrier everyone(3);
  std::vector<std::thread> threads;
  std::vector<std::string> errors(2);
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto own_store = store.clone();
        const auto ranks = make_host_communicator(*own_store, options_of(world, rank));
        everyone.arrive_and_wait();
        for (int i = 0; i < 300; ++i) {
          std::vector<float> values(3000, 1.0f);
          ranks->all_reduce(view(values), ReduceOp::kSum);
          if (values[0] != 2.0f) throw std::runtime_error("wrong sum");
          if (i == 100) everyone.arrive_and_wait();  // by now the strangers are there
        }
        everyone.arrive_and_wait();
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
        everyone.arrive_and_drop();
      }
    });
  }
  everyone.arrive_and_wait();
  const PeerRecord record = PeerRecord::decode(store.get("test/host/1"), 1);
  const Deadline deadline = Deadline::after(10s);
  const UniqueFd silent = connect_to(record.endpoint, deadline);
  const UniqueFd noisy = connect_to(record.endpoint, deadline);
  const std::string junk(100'000, 'x');
  [[maybe_unused]] const ssize_t ignored =
      ::send(noisy.get(), junk.data(), junk.size(), MSG_NOSIGNAL);
  const UniqueFd forged = connect_to(record.endpoint, deadline);
  Hello hello;  // only the token is wrong
  hello.to = 1;
  hello.purpose = Purpose::kRing;
  send_all(forged.get(), &hello, sizeof hello, deadline);
  everyone.arrive_and_wait();
  for (const UniqueFd* fd : {&noisy, &forged}) {
    char byte;
    CHECK(wait_ready(fd->get(), POLLIN, deadline));
    CHECK(::recv(fd->get(), &byte, 1, 0) <= 0);  // the peer has closed it
  }
  everyone.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) CHECK(error == "");
}
