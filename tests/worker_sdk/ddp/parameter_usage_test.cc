// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/ddp_rules.h"

#include "common/error.h"
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::test::Contains;

using Parameters = std::vector<std::size_t>;
using Used = std::vector<std::uint8_t>;

TEST_CASE("ParameterUsage: a gradient is complete when it comes if every parameter is used") {
  ParameterUsage usage(UsageMode::kAll, {"a", "b"});
  CHECK_FALSE(usage.learning());
  CHECK(usage.on_gradient(1));
  CHECK(usage.unused().empty());
  CHECK_THAT(usage.advice(), Contains("find_unused_parameters"));
}

TEST_CASE("ParameterUsage: parameters that are expected unused are so for one iteration") {
  ParameterUsage usage(UsageMode::kFindUnused, {"a", "b", "c"});
  usage.expect_unused({0, 2});
  CHECK(usage.unused() == Parameters{0, 2});
  CHECK(usage.on_gradient(1));
  CHECK(usage.used() == Used{0, 1, 0});
  usage.end_iteration();
  CHECK(usage.unused().empty());
  CHECK(usage.used() == Used{0, 0, 0});
}

TEST_CASE("ParameterUsage: a local gradient counts as a use in the iteration that averages it") {
  ParameterUsage usage(UsageMode::kFindUnused, {"a", "b", "c"});
  usage.on_local_gradient(2);
  usage.expect_unused({0, 2});
  usage.on_gradient(1);
  CHECK(usage.used() == Used{0, 1, 1});
}

TEST_CASE("ParameterUsage: a static graph's first iteration tells how many gradients to wait for") {
  ParameterUsage usage(UsageMode::kStatic, {"a", "b", "c", "d"});
  REQUIRE(usage.learning());
  for (const std::size_t index : {3, 1, 3, 0}) CHECK_FALSE(usage.on_gradient(index));
  CHECK(usage.learn() == Parameters{1, 3, 0});  // the order of their last gradients
  CHECK(usage.unused() == Parameters{2});
  CHECK_FALSE(usage.learning());
  usage.end_iteration();

  for (int iteration = 0; iteration < 2; ++iteration) {
    CHECK(usage.unused() == Parameters{2});
    CHECK_FALSE(usage.on_gradient(3));
    CHECK(usage.on_gradient(0));
    CHECK(usage.on_gradient(3));
    CHECK(usage.on_gradient(1));
    usage.end_iteration();
  }
}

TEST_CASE("ParameterUsage: a static graph that changes is an error that names the parameter") {
  ParameterUsage usage(UsageMode::kStatic, {"a", "b"});
  usage.on_gradient(0);
  usage.learn();
  usage.end_iteration();
  SECTION("a parameter that was unused") {
    CHECK_THROWS_WITH(usage.on_gradient(1), Contains("b got 1 gradients in this iteration and 0"));
  }
  SECTION("one that is used more often") {
    usage.on_gradient(0);
    CHECK_THROWS_WITH(usage.on_gradient(0), Contains("a got 2 gradients in this iteration and 1"));
  }
  SECTION("the advice about a missing gradient is that the graph has changed") {
    CHECK_THAT(usage.advice(), Contains("the graph has changed"));
  }
}
