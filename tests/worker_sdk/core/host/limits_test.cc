// SPDX-License-Identifier: Apache-2.0
// Sizes and time-outs at the limits of their types, and a process without free descriptors.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <barrier>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/no_more_threads.h"
#include "tests/support/slow_store.h"
#include "tests/worker_sdk/core/host/rank_threads.h"
#include "worker_sdk/core/host/bootstrap.h"
#include "worker_sdk/core/host/operation_io.h"

using namespace ddprun;
using namespace ddprun::host;
using ddprun::test::code_of;
using namespace std::chrono_literals;
using ddprun::test::Contains;

namespace {

// While this lives, no further descriptor can be opened in this process.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const UniqueFd lowest_free(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest_free.get());
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoMoreDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;
  NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("host communicator: sizes that overflow are refused, and the ranks stay in step") {
  const int num_ranks = GENERATE(1, 2);
  const auto errors = run_world(one_node(num_ranks), [](Communicator& ranks) {
    std::vector<float> values(4);
    const auto refused = [&](const std::function<void()>& call) {
      if (code_of(call) != ErrorCode::kInvalidArgument) throw std::runtime_error("accepted");
    };
    const auto of = [&](std::size_t count, DType dtype = DType::kFloat32) {
      return TensorView{.data = values.data(), .count = count, .dtype = dtype};
    };
    const std::size_t most = std::numeric_limits<std::size_t>::max();
    refused([&] { ranks.allocate(most); });
    refused([&] { ranks.allocate(most / 2); });
    // With an overflow this would be 4 bytes.
    refused([&] { ranks.all_reduce(of(most / 4 + 1), ReduceOp::kSum); });
    refused([&] { ranks.all_reduce(of(1, static_cast<DType>(77)), ReduceOp::kSum); });
    refused([&] { ranks.broadcast(of(most), 0); });
    if (ranks.size() == 2) {  // with an overflow 2 × 2^63 parts would be 0 elements
      refused([&] { ranks.all_gather(of(most / 2 + 1, DType::kUInt8), of(0, DType::kUInt8)); });
    }
    ranks.barrier();
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host communicator: a time-out of milliseconds::max() is one that never comes") {
  const auto layout = GENERATE(std::vector<int>{0, 0}, std::vector<int>{0, 1});
  WorldOptions world{.node_rank_of = layout};
  world.timeout = std::chrono::milliseconds::max();
  const auto errors = run_world(world, [](Communicator& ranks) {
    for (int i = 0; i < 20; ++i) ranks.barrier();
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host communicator: a rank that can't get memory fails the others at once") {
  std::barrier both(2);
  std::optional<ErrorCode> codes[2];
  std::string texts[2];
  std::optional<NoMoreDescriptors> full;
  const Clock::time_point start = Clock::now();
  const auto errors = run_world(one_node(2), [&](Communicator& ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    ranks.barrier();
    both.arrive_and_wait();
    if (rank == 0) full.emplace();
    both.arrive_and_wait();
    codes[rank] = code_of([&] { ranks.allocate(1000); }, &texts[rank]);
    both.arrive_and_wait();
    if (rank == 0) full.reset();
  });
  CHECK(all_well(errors));
  CHECK(codes[0] == ErrorCode::kResourceExhausted);
  CHECK(codes[1] == ErrorCode::kPeerLost);
  CHECK_THAT(texts[1], Contains("rank 0 aborted") && Contains("memfd_create"));
  CHECK(Clock::now() - start < 10s);
}

TEST_CASE(
    "host communicator: a rank whose memory is exhausted in a call fails the others at once") {
  WorldOptions world{.node_rank_of = {0, 0, 1}};
  // More than a vector can hold, which is an exception of its own.
  world.chunk_bytes = std::size_t{1} << 63;
  std::optional<ErrorCode> codes[3];
  std::string texts[3];
  std::barrier all(3);
  const Clock::time_point start = Clock::now();
  const auto errors = run_world(world, [&](Communicator& ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    std::vector<float> values(100'000);
    all.arrive_and_wait();  // all have set up, because an earlier failure would be the set-up's
    codes[rank] = code_of(
        [&] { ranks.all_reduce({.data = values.data(), .count = 100'000}, ReduceOp::kSum); },
        &texts[rank]);
    all.arrive_and_wait();
    // Two failures came at the same moment, and it may remember either.
    const auto again = code_of([&] { ranks.barrier(); });
    all.arrive_and_wait();
    const bool is_known = again == ErrorCode::kResourceExhausted || again == ErrorCode::kPeerLost;
    if (!is_known) throw std::runtime_error("forgotten");
  });
  for (const std::string& error : errors) CHECK(error == "");
  // Ranks 0 and 2 move the data between the nodes, and one of them fails first. Rank 1 only waits
  // for its own node.
  const std::size_t first = codes[0] == ErrorCode::kResourceExhausted ? 0 : 2;
  CHECK(codes[first] == ErrorCode::kResourceExhausted);
  CHECK_THAT(texts[first], Contains("all_reduce(float32 × 100000, sum) #1 on rank "));
  CHECK(codes[1] == ErrorCode::kPeerLost);
  CHECK_THAT(texts[1], Contains("aborted during all_reduce"));
  CHECK(Clock::now() - start < 10s);
}

TEST_CASE("host communicator: a rank that has no thread for a call fails the others at once") {
  std::barrier both(2);
  std::optional<ErrorCode> codes[2];
  std::string texts[2];
  std::optional<test::NoMoreThreads> none;
  const Clock::time_point start = Clock::now();
  const auto errors = run_world(one_node(2), [&](Communicator& ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    std::vector<float> values(10);
    const TensorView view{.data = values.data(), .count = values.size()};
    ranks.barrier();
    both.arrive_and_wait();
    if (rank == 0) none.emplace();
    const CallOptions options{.async = rank == 0};
    codes[rank] = code_of([&] { ranks.all_reduce(view, ReduceOp::kSum, options); }, &texts[rank]);
    if (rank == 0) none.reset();
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    if (sigismember(&mask, SIGTERM) == 1) throw std::runtime_error("signals stay blocked");
    both.arrive_and_wait();
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(codes[0] == ErrorCode::kResourceExhausted);
  CHECK_THAT(texts[0], Contains("can't start the thread ddprun-comm"));
  CHECK(codes[1] == ErrorCode::kPeerLost);
  CHECK_THAT(texts[1], Contains("rank 0 aborted"));
  CHECK(Clock::now() - start < 10s);
}

TEST_CASE("host communicator: the exchange of records has one deadline") {
  test::SlowStore store;
  PeerRecord own;
  own.unix_name = "x";
  const auto error = code_of(
      [&] { exchange_records(store, options_of(one_node(1), 0), own, Deadline::after(10s)); });
  CHECK(!error);
  CHECK(store.kept_one_deadline());
}

TEST_CASE("receive_memory: a process with no descriptor left is told so") {
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  const UniqueFd first(pair[0]);
  NodeConnections member;
  member.memory.emplace_back(pair[1]);
  const UniqueFd memory = create_shared_memory("test", 4096);
  const Deadline deadline = Deadline::after(10s);
  hand_memory(first.get(), memory.get(), 1, deadline);
  std::string what;
  std::optional<ErrorCode> code;
  {
    const NoMoreDescriptors full;
    code = code_of([&] { receive_memory(member, Topology({0, 0}, 1), deadline); }, &what);
  }
  CHECK(code == ErrorCode::kResourceExhausted);
  CHECK_THAT(what, Contains("rank 1") && Contains("ulimit -n"));
}

TEST_CASE("OperationIo: a peer that is always ready can't hold a call beyond its deadline") {
  const Topology topology({0, 1}, 0);
  const std::size_t size_bytes = NodeMemoryLayout(1).total_bytes();
  const UniqueFd memory = create_shared_memory("test", size_bytes);
  NodeGroup group(topology, SharedMapping(memory.get(), size_bytes));
  OperationIo io(group);
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  const UniqueFd near(pair[0]), far(pair[1]);
  REQUIRE(::write(far.get(), "x", 1) == 1);
  std::vector<pollfd> polls{{.fd = near.get(), .events = POLLIN, .revents = 0}};
  Call call{
      .header = {.kind = CallKind::kAllReduce}, .deadline = Deadline::after(10s), .timeout = 10s};
  io.wait(polls, 1, call);
  call.deadline = Deadline::after(0s);
  CHECK(code_of([&] { io.wait(polls, 1, call); }) == ErrorCode::kTimeout);
}

TEST_CASE("OperationIo: a connection that ends waits for the news of who really failed") {
  const Topology topology({0, 1, 2}, 0);
  const std::size_t size_bytes = NodeMemoryLayout(1).total_bytes();
  const UniqueFd memory = create_shared_memory("test", size_bytes);
  NodeGroup group(topology, SharedMapping(memory.get(), size_bytes));
  int num_looks = 0;
  OperationIo io(group, [&] {  // the news come a little later
    if (++num_looks == 3) group.post_failure(FailureKind::kRankLost, 2, "its process ended");
  });
  const Call call{
      .header = {.kind = CallKind::kAllReduce}, .deadline = Deadline::after(10s), .timeout = 10s};
  std::string what;
  CHECK(code_of([&] { io.connection_ended(1, "reset", call); }, &what) == ErrorCode::kPeerLost);
  CHECK_THAT(what, Catch::Matchers::StartsWith("rank 2 was lost"));
}
