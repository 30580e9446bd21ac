// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/solo_communicator.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/worker_sdk/core/exchange_checks.h"

using namespace ddprun;

namespace {
TensorView view(std::vector<float>& values) {
  return {.data = values.data(), .count = values.size(), .dtype = DType::kFloat32};
}
}  // namespace

TEST_CASE("solo communicator: collectives leave or copy the one rank's values") {
  const auto communicator = make_solo_communicator();
  std::vector<float> values{1, 2, 3}, output(3);
  communicator->all_reduce(view(values), ReduceOp::kAverage)->wait();
  communicator->broadcast(view(values), 0);
  CHECK(values == std::vector<float>{1, 2, 3});
  CHECK(communicator->all_gather(view(values), view(output))->is_completed());
  CHECK(output == values);
  communicator->barrier();
}

TEST_CASE("solo communicator: buffers are zeroed and aligned") {
  const auto communicator = make_solo_communicator();
  for (int i = 0; i < 3; ++i) {  // the next buffer may get the memory of the last one
    const auto buffer = communicator->allocate(100'000);
    REQUIRE(buffer->size_bytes() == 100'000);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64 == 0);
    auto* const bytes = static_cast<char*>(buffer->data());
    CHECK(std::count(bytes, bytes + 100'000, 0) == 100'000);
    std::fill_n(bytes, 100'000, 'x');
  }
}

TEST_CASE("solo communicator: reduce, groups and exchanges") {
  const auto communicator = make_solo_communicator();
  test::check_exchange(
      *communicator, [](DType dtype, std::size_t count) { return test::HostArray(dtype, count); });
}

TEST_CASE("solo communicator: there is no other rank") {
  const auto communicator = make_solo_communicator();
  std::vector<float> values{1};
  CHECK_THROWS_AS(communicator->send(view(values), 1), Error);
  CHECK_THROWS_AS(communicator->broadcast(view(values), 1), Error);
}

TEST_CASE("solo communicator: every operation after abort fails") {
  const auto communicator = make_solo_communicator();
  communicator->abort("test");
  std::vector<float> values{1}, output(1);
  CHECK_THROWS_AS(communicator->all_reduce(view(values), ReduceOp::kSum), Error);
  CHECK_THROWS_AS(communicator->broadcast(view(values), 0), Error);
  CHECK_THROWS_AS(communicator->all_gather(view(values), view(output)), Error);
  CHECK_THROWS_AS(communicator->reduce_scatter(view(values), view(output), ReduceOp::kSum), Error);
  CHECK_THROWS_AS(communicator->barrier(), Error);
}
