// SPDX-License-Identifier: Apache-2.0
// Messages with tags, and receives from any rank.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/worker_sdk/core/host/rank_threads.h"

using namespace ddprun;
using namespace ddprun::host;
using namespace std::chrono_literals;
using ddprun::test::expect;

namespace {

constexpr std::size_t kLarge = 100'003;  // more than the slots of a mailbox hold

TensorView all_of(std::vector<float>& values) {
  return {.data = values.data(), .count = values.size()};
}

CallOptions tagged(int tag, bool async = false) { return {.async = async, .tag = tag}; }

void send_value(Communicator& ranks, float value, int peer, int tag, std::size_t count = kLarge) {
  std::vector<float> values(count, value);
  ranks.send(all_of(values), peer, tagged(tag));
}

void expect_value(Communicator& ranks, float value, int peer, int tag, std::size_t count = kLarge) {
  std::vector<float> values(count);
  ranks.recv(all_of(values), peer, tagged(tag));
  expect(std::count(values.begin(), values.end(), value) == static_cast<std::ptrdiff_t>(count),
         "the message of tag " + std::to_string(tag));
}

}  // namespace

TEST_CASE("host messages: a receive gets the message of its tag, whatever came before it") {
  const auto layout = GENERATE(std::vector<int>{0, 0}, std::vector<int>{0, 1});
  const auto errors = run_world({.node_rank_of = layout}, [](Communicator& ranks) {
    if (ranks.rank() == 0) {
      for (const int tag : {7, 3, 7, 0}) send_value(ranks, static_cast<float>(tag), 1, tag);
      expect_value(ranks, 1, 1, 0, 1);
      send_value(ranks, 5, 1, 5);
      return;
    }
    std::vector<float> last(kLarge);
    const WorkPtr fifth = ranks.recv(all_of(last), 0, tagged(5, true));
    for (const int tag : {0, 7, 3, 7}) expect_value(ranks, static_cast<float>(tag), 0, tag);
    expect(!fifth->is_completed(), "its message was not sent");
    send_value(ranks, 1, 0, 0, 1);
    fifth->wait();
    expect(last.back() == 5, "the first receive, of the last message");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE(
    "host messages: messages of one tag come in order, also to receives that nobody waits for") {
  const auto layout = GENERATE(std::vector<int>{0, 0}, std::vector<int>{0, 1});
  const auto errors = run_world({.node_rank_of = layout}, [](Communicator& ranks) {
    // Each sends much before it waits: the receives must go on in the background.
    const int peer = 1 - ranks.rank();
    std::vector<std::vector<float>> received(3, std::vector<float>(kLarge));
    std::vector<WorkPtr> works;
    for (auto& values : received)
      works.push_back(ranks.recv(all_of(values), peer, tagged(2, true)));
    for (const int value : {1, 2, 3}) send_value(ranks, static_cast<float>(value), peer, 2);
    for (std::size_t i = works.size(); i-- > 0;) works[i]->wait();
    for (std::size_t i = 0; i < received.size(); ++i) {
      expect(received[i].back() == static_cast<float>(i + 1), "the order of one tag");
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host messages: they come from any rank, also when another one has left") {
  const auto layout = GENERATE(std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 0});
  const auto errors = run_world({.node_rank_of = layout}, [](Communicator& ranks) {
    if (ranks.rank() != 0) {
      if (ranks.rank() == 2) expect_value(ranks, 4, 0, 9, 1);  // so that rank 1 comes first
      send_value(ranks, static_cast<float>(ranks.rank()), 0, 4);
      return;
    }
    for (const int rank : {1, 2}) {
      std::vector<float> values(kLarge);
      int source = -1;
      if (rank == 1) {
        ranks.recv_any(all_of(values), &source, tagged(4, true))->wait();
        send_value(ranks, 4, 2, 9, 1);
      } else {
        ranks.recv_any(all_of(values), &source, tagged(4));
      }
      expect(source == rank && values.back() == static_cast<float>(rank), "who sent what");
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host messages: a receive from any rank ends when one aborts, or at its deadline") {
  const bool aborts = GENERATE(true, false);
  const auto errors = run_world(one_node(2), [&](Communicator& ranks) {
    ranks.barrier();
    if (ranks.rank() == 0) {
      if (aborts) {
        ranks.abort("enough");
      } else {
        test::error_of([&] { ranks.barrier(); });  // until the other one has gone
      }
      return;
    }
    float value = 0;
    int source = -1;
    const Error error = test::error_of([&] {
      ranks.recv_any({.data = &value, .count = 1}, &source, {.timeout = aborts ? 20s : 100ms});
    });
    expect(error.code() == (aborts ? ErrorCode::kPeerLost : ErrorCode::kTimeout), error.what());
    const std::string wanted = aborts ? "rank 0 aborted" : "waiting for a message of any rank";
    expect(std::string(error.what()).find(wanted) != std::string::npos, error.what());
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host messages: other threads' calls begin while one waits in a collective") {
  constexpr int kMany = 500;  // the collective begins among them
  const auto layout = GENERATE(std::vector<int>{0, 0}, std::vector<int>{0, 1});
  const auto errors =
      run_world({.node_rank_of = layout, .several_threads = true}, [](Communicator& ranks) {
        std::vector<float> sum(1, 1.0f);
        if (ranks.rank() == 1) {
          for (int i = 0; i < kMany; ++i) expect_value(ranks, 1, 0, 0, 1);
          ranks.barrier();
          ranks.all_reduce(all_of(sum), ReduceOp::kSum);
        } else {
          std::thread waits([&] { ranks.barrier(); });
          for (int i = 0; i < kMany; ++i) send_value(ranks, 1, 1, 0, 1);
          waits.join();
          ranks.all_reduce(all_of(sum), ReduceOp::kSum);
        }
        expect(sum[0] == 2, "the sum");
      });
  for (const std::string& error : errors) CHECK(error == "");
}
