// SPDX-License-Identifier: Apache-2.0
#include "common/name_lookup.h"

#include <future>
#include <memory>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using namespace std::chrono_literals;
using ddprun::test::Contains;

TEST_CASE("look_up: a number is answered at once, also when the deadline has passed") {
  const NameLookup found = look_up({"127.0.0.1", 7}, Deadline::after(0ms));
  REQUIRE(found.addresses.size() == 1);
  CHECK(found.addresses.front().text() == "127.0.0.1:7");
  CHECK(found.failure.empty());
}

TEST_CASE("look_up: a name's answer, or the reason why there is none", "[net]") {
  CHECK(look_up({"localhost", 7}, Deadline::after(10s)).addresses.front().is_loopback());
  const NameLookup none = look_up({"two words", 7}, Deadline::after(10s));
  CHECK(none.addresses.empty());
  CHECK_THAT(none.failure, Contains("\"two words\""));
}

TEST_CASE("look_up: the deadline holds, and the late answer finds nobody", "[net]") {
  const NameLookup none = look_up({"localhost", 7}, Deadline::after(0ms));
  if (none.addresses.empty()) CHECK_THAT(none.failure, Contains("in time"));
}

TEST_CASE("look_up_in_background: answers on another thread", "[net]") {
  const auto answer = std::make_shared<std::promise<std::thread::id>>();
  auto waiting = answer->get_future();
  look_up_in_background({"localhost", 7}, [answer](const NameLookup&) {
    answer->set_value(std::this_thread::get_id());
  });
  REQUIRE(waiting.wait_for(10s) == std::future_status::ready);
  CHECK(waiting.get() != std::this_thread::get_id());
}
