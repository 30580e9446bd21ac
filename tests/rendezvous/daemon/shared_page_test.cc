// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/shared_page.h"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

// A page that takes one millisecond to make, and says its number.
struct Costly {
  void make(const SharedPage::Made& made) {
    const auto until = Clock::now() + 1ms;
    while (Clock::now() < until) {
    }
    ++num_made;
    if (!is_slow) return made(std::to_string(num_made), 1ms);
    unmade.push_back(made);
  }
  void ask(int number) {
    page->ask([this, number](const std::string& body) { told.emplace_back(number, body); });
  }
  boost::asio::io_context io;
  int num_made = 0;
  bool is_slow = false;  // made later, by the test
  std::vector<SharedPage::Made> unmade;
  std::vector<std::pair<int, std::string>> told;
  std::unique_ptr<SharedPage> page =
      std::make_unique<SharedPage>(io, [this](const SharedPage::Made& made) { make(made); });
};

TEST_CASE("SharedPage: the first request has its page at once, later ones soon after share one") {
  Costly costly;
  const auto begun = Clock::now();
  costly.ask(0);
  CHECK(costly.told == decltype(costly.told){{0, "1"}});
  for (int i = 1; i <= 3; ++i) costly.ask(i);
  CHECK(costly.told.size() == 1);
  costly.io.run();
  CHECK(costly.told == decltype(costly.told){{0, "1"}, {1, "2"}, {2, "2"}, {3, "2"}});
  CHECK(Clock::now() - begun >= 1ms * (SharedPage::kShare + 1));
}

TEST_CASE("SharedPage: a request while one is being made has the next one") {
  Costly costly;
  costly.is_slow = true;
  costly.ask(0);
  costly.ask(1);
  costly.io.poll();
  REQUIRE(costly.unmade.size() == 1);
  costly.unmade[0]("first", 1ms);
  CHECK(costly.told == decltype(costly.told){{0, "first"}});
  costly.io.restart();
  costly.io.run();
  REQUIRE(costly.unmade.size() == 2);
  costly.unmade[1]("second", 1ms);
  CHECK(costly.told == decltype(costly.told){{0, "first"}, {1, "second"}});
}

TEST_CASE("SharedPage: one that is made after its end is told to nobody") {
  Costly costly;
  costly.is_slow = true;
  costly.ask(0);
  costly.page.reset();
  costly.unmade[0]("late", 1ms);
  CHECK(costly.told.empty());
}

TEST_CASE("SharedPage: a request that still waits at its end is told nothing") {
  Costly costly;
  costly.ask(0);
  costly.ask(1);
  costly.page.reset();
  costly.io.run();
  CHECK(costly.told.size() == 1);
}

}  // namespace
}  // namespace ddprun::rendezvous
