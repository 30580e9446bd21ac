// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/bucket_plan.h"

#include <algorithm>
#include <numeric>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;

namespace {

ParameterSpec floats(std::size_t count, DType dtype = DType::kFloat32) {
  return {.name = "p", .count = count, .dtype = dtype};
}

std::vector<std::size_t> reversed(std::size_t n) {
  std::vector<std::size_t> order(n);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

}  // namespace

TEST_CASE("bucket plan: all of one dtype share one bucket if there is no order") {
  CHECK(plan_without_order(std::vector{floats(10), floats(1 << 24), floats(3)}) ==
        BucketPlan{{0, 1, 2}});
}

TEST_CASE("bucket plan: the last dtype to appear is launched first if there is no order") {
  const std::vector parameters{floats(4), floats(4, DType::kFloat64), floats(4)};
  CHECK(plan_without_order(parameters) == BucketPlan{{1}, {0, 2}});
}

TEST_CASE("bucket plan: a bucket closes when it has reached its limit, the first one early") {
  const std::vector parameters{floats(50), floats(25), floats(25), floats(10), floats(100)};
  const BucketLimits limits{.first_bytes = 40, .cap_bytes = 200};
  // The buckets are arrival 4 (400 B ≥ 40), then 3 + 2 + 1 (240 ≥ 200), then 0.
  CHECK(plan_by_arrival(parameters, reversed(5), limits) == BucketPlan{{4}, {3, 2, 1}, {0}});
}

TEST_CASE("bucket plan: each dtype has limits of its own") {
  const std::vector parameters{floats(10), floats(5, DType::kFloat64), floats(10),
                               floats(5, DType::kFloat64), floats(10)};
  const BucketLimits limits{.first_bytes = 40, .cap_bytes = 80};
  CHECK(plan_by_arrival(parameters, std::vector<std::size_t>{0, 1, 2, 3, 4}, limits) ==
        BucketPlan{{0}, {1}, {2, 4}, {3}});
}

TEST_CASE("bucket plan: an order by names is the same plan, one that does not fit is refused") {
  const std::vector<std::string> known{"a.weight", "a.bias", "b.weight"};
  const std::vector<std::string> order{"b.weight", "a.weight", "a.bias"};
  CHECK(indices_of_order(known, order) == std::vector<std::size_t>{2, 0, 1});
  CHECK(plan_by_arrival(std::vector{floats(50), floats(10), floats(10)},
                        indices_of_order(known, order),
                        {.first_bytes = 40, .cap_bytes = 200}) == BucketPlan{{2}, {0}, {1}});
  CHECK(indices_of_order({}, {}).empty());
  const auto refusal = [&](const std::vector<std::string>& names) {
    const Error error = test::error_of([&] { indices_of_order(known, names); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return std::string(error.what());
  };
  const std::string prefix = "the order of gradients does not fit the model: ";
  CHECK(refusal({"b.weight", "a.weight"}) == prefix + "a.bias is missing");
  CHECK(refusal({}) == prefix + "a.weight is missing");
  CHECK(refusal({"b.weight", "b.weight", "a.bias"}) == prefix + "b.weight is there twice");
  CHECK(refusal({"b.weight", "a.weight", "a.bias", "c\n"}) ==
        prefix + "c\\n is no parameter whose gradient is averaged");
}

TEST_CASE("bucket plan: no parameters, no buckets") {
  CHECK(plan_without_order({}).empty());
  CHECK(plan_by_arrival({}, {}, {}).empty());
}

TEST_CASE("bucket layout: gradients are aligned, disjoint and inside their bucket") {
  const std::vector parameters{floats(1), floats(17), floats(3, DType::kFloat16), floats(100)};
  const BucketPlan plan{{3}, {2}, {1, 0}};
  const BucketLayout layout = lay_out(parameters, plan);
  REQUIRE(layout.buckets.size() == 3);
  std::size_t end = 0;
  for (std::size_t b = 0; b < plan.size(); ++b) {
    CHECK(layout.buckets[b].offset_bytes == end);
    for (const std::size_t index : plan[b]) {
      CHECK(layout.slots[index].bucket == b);
      CHECK(layout.slots[index].offset_bytes >= end);
      CHECK(layout.slots[index].offset_bytes % kGradientAlignment == 0);
      CHECK(layout.buckets[b].dtype == parameters[index].dtype);
      end = layout.slots[index].offset_bytes + parameters[index].size_bytes();
    }
    end =
        layout.buckets[b].offset_bytes + layout.buckets[b].count * size_of(layout.buckets[b].dtype);
  }
  CHECK(end <= arena_bytes(parameters));
}

TEST_CASE(
    "limits_for: PyTorch's 25 MiB, less where smaller buckets are as fast, or what is asked") {
  CHECK(limits_for("nccl", {}).cap_bytes == 25u << 20);
  CHECK(limits_for("host", {}).cap_bytes == 4u << 20);
  CHECK(limits_for("host", {.cap_bytes = 77}).cap_bytes == 77);
  CHECK(limits_for("host", {.first_bytes = 5}).first_bytes == 5);
}
