// SPDX-License-Identifier: Apache-2.0
// The agreement on NCCL: its rule, and that all ranks hear the same in few store requests.
#include "worker_sdk/core/backend_agreement.h"

#include <algorithm>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/shared_store.h"

namespace ddprun {
namespace {

using Kind = BackendVerdict::Kind;

DeviceOffer offer(int rank, BackendChoice choice, const std::string& device) {
  return {rank, choice, device, "", device.empty() ? "CUDA sees no GPU" : ""};
}

// The offer of a MIG slice of `gpu`.
DeviceOffer slice(int rank, const std::string& device, const std::string& gpu) {
  return {rank, BackendChoice::kAuto, device, gpu, ""};
}

// The GPU's name, as gpu_identity() makes it, has its host and its place there.
std::vector<DeviceOffer> two_nodes_of_four() {
  std::vector<DeviceOffer> offers;
  for (int rank = 0; rank < 8; ++rank) {
    const std::string gpu = "host " + std::to_string(rank / 4) + "/bus " + std::to_string(rank % 4);
    offers.push_back(slice(rank, "device of rank " + std::to_string(rank), gpu));
  }
  return offers;
}

TEST_CASE("BackendChoice: names and values match") {
  CHECK(parse_backend_choice("auto") == BackendChoice::kAuto);
  CHECK(parse_backend_choice("host") == BackendChoice::kHost);
  CHECK(parse_backend_choice("nccl") == BackendChoice::kNccl);
  CHECK(!parse_backend_choice("gloo"));
  CHECK(!parse_backend_choice(""));
}

TEST_CASE("decide_backend: the table of docs/nccl.md") {
  constexpr auto kAuto = BackendChoice::kAuto;
  constexpr auto kHost = BackendChoice::kHost;
  constexpr auto kNccl = BackendChoice::kNccl;
  struct Case {
    const char* what;
    std::vector<DeviceOffer> offers;
    Kind kind;
    const char* why;
  };
  const std::vector<Case> cases = {
      {"auto, a device each", {offer(0, kAuto, "a"), offer(1, kAuto, "b")}, Kind::kNccl, ""},
      {"auto, one rank without",
       {offer(0, kAuto, "a"), offer(2, kAuto, ""), offer(1, kAuto, "b")},
       Kind::kHost,
       "rank 2 has no GPU of its own: CUDA sees no GPU"},
      {"auto, the first of several without is named",
       {offer(1, kAuto, ""), offer(0, kAuto, "")},
       Kind::kHost,
       "rank 0 has no GPU"},
      {"auto, a shared device",
       {offer(3, kAuto, "a"), offer(0, kAuto, "a"), offer(1, kAuto, "b")},
       Kind::kHost,
       "rank 3 would share its GPU with rank 0"},
      {"auto, slices of one GPU, as NCCL before 2.30.7 has it",
       {slice(0, "a", "gpu 1"), slice(1, "b", "gpu 2"), slice(2, "c", "gpu 1")},
       Kind::kHost,
       "rank 2 has a slice (MIG) of the GPU of rank 0, and NCCL before 2.30.7 accepts only one "
       "rank"},
      {"auto, slices of one GPU, as NCCL 2.30.7 has it",
       {slice(0, "a", ""), slice(1, "b", "")},
       Kind::kNccl,
       ""},
      {"auto, two nodes of four GPUs, at the same places on both", two_nodes_of_four(), Kind::kNccl,
       ""},
      {"nccl, a device each", {offer(0, kNccl, "a"), offer(1, kNccl, "b")}, Kind::kNccl, ""},
      {"nccl, one rank without",
       {offer(0, kNccl, "a"), offer(1, kNccl, "")},
       Kind::kRefused,
       "\"nccl\" can't be used: rank 1 has no GPU of its own"},
      {"nccl, a shared device",
       {offer(0, kNccl, "a"), offer(1, kNccl, "a")},
       Kind::kRefused,
       "rank 1 would share its GPU with rank 0"},
      {"host, whatever there is", {offer(0, kHost, "a"), offer(1, kHost, "")}, Kind::kHost, ""},
      {"different choices",
       {offer(0, kAuto, "a"), offer(1, kNccl, "b")},
       Kind::kRefused,
       "rank 0 \"auto\", rank 1 \"nccl\""},
  };
  for (const Case& one : cases) {
    const BackendVerdict verdict = decide_backend(one.offers);
    INFO(one.what << ": " << verdict.why);
    CHECK(verdict.kind == one.kind);
    CHECK(verdict.why.find(one.why) != std::string::npos);
    if (one.why[0] == '\0') CHECK(verdict.why.empty());
    const bool fell_back = one.kind == Kind::kHost && one.why[0] != '\0';
    const bool some_have = std::any_of(one.offers.begin(), one.offers.end(),
                                       [](const auto& each) { return !each.device_id.empty(); });
    CHECK(verdict.some_have_a_device == (fell_back && some_have));
  }
}

// One rank's end of the agreement: its verdict, or its error's text and code.
struct Outcome {
  BackendVerdict verdict;
  std::string error;
  ErrorCode code = ErrorCode::kSystem;
};

std::vector<Outcome> agree(test::SharedStore& store, int world_size,
                           const std::vector<DeviceOffer>& offers,
                           std::chrono::milliseconds timeout) {
  std::vector<Outcome> outcomes(offers.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    threads.emplace_back([&, i, connection = std::shared_ptr<store::Store>(store.clone())] {
      connection->set_timeout(timeout);
      try {
        outcomes[i].verdict = agree_on_backend(*connection, world_size, offers[i]);
      } catch (const Error& error) {
        outcomes[i].error = error.what();
        outcomes[i].code = error.code();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

TEST_CASE("agree_on_backend: 1 to 4 ranks hear the same, in at most six requests per rank") {
  for (int size = 1; size <= 4; ++size) {
    for (const bool last_has_device : {true, false}) {
      test::SharedStore store;
      std::vector<DeviceOffer> offers;
      for (int rank = 0; rank < size; ++rank) {
        const bool has = rank + 1 < size || last_has_device;
        offers.push_back(
            offer(rank, BackendChoice::kAuto, has ? "gpu" + std::to_string(rank) : ""));
      }
      for (const Outcome& outcome : agree(store, size, offers, std::chrono::seconds(30))) {
        CHECK(outcome.error.empty());
        CHECK(outcome.verdict.kind == (last_has_device ? Kind::kNccl : Kind::kHost));
        const std::string expected =
            last_has_device ? "" : "rank " + std::to_string(size - 1) + " has no GPU";
        CHECK(outcome.verdict.why.find(expected) != std::string::npos);
        CHECK(outcome.verdict.some_have_a_device == (!last_has_device && size > 1));
      }
      // Each rank appends, adds and gets. The last one to arrive also gets and sets.
      CHECK(store.num_requests() == 3 * size + 2);
    }
  }
}

TEST_CASE("agree_on_backend: every rank hears a refusal, with the rank's name") {
  test::SharedStore store;
  const std::vector<DeviceOffer> offers = {offer(0, BackendChoice::kNccl, "a"),
                                           offer(1, BackendChoice::kNccl, "b"),
                                           offer(2, BackendChoice::kNccl, "")};
  for (const Outcome& outcome : agree(store, 3, offers, std::chrono::seconds(30))) {
    CHECK(outcome.code == ErrorCode::kInvalidArgument);
    CHECK(outcome.error.find("rank 2 has no GPU of its own") != std::string::npos);
  }
}

TEST_CASE("agree_on_backend: a rank that never comes is named at the deadline") {
  test::SharedStore store;
  const std::vector<DeviceOffer> offers = {offer(0, BackendChoice::kAuto, "a"),
                                           offer(2, BackendChoice::kAuto, "c")};
  for (const Outcome& outcome : agree(store, 4, offers, std::chrono::milliseconds(100))) {
    CHECK(outcome.code == ErrorCode::kTimeout);
    INFO(outcome.error);
    CHECK(outcome.error.find("never came: rank 1, 3") != std::string::npos);
  }
}

TEST_CASE("agree_on_backend: tabs and line ends in a reason do no harm") {
  test::SharedStore store;
  DeviceOffer mine = offer(0, BackendChoice::kAuto, "");
  mine.reason = "libcuda.so.1:\n\tnot found";
  const Outcome outcome = agree(store, 1, {mine}, std::chrono::seconds(30)).front();
  CHECK(outcome.verdict.kind == Kind::kHost);
  CHECK(outcome.verdict.why.find("libcuda.so.1:  not found") != std::string::npos);
}

}  // namespace
}  // namespace ddprun
