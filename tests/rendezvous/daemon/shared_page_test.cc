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
  std::string make() {
    const auto until = Clock::now() + 1ms;
    while (Clock::now() < until) {
    }
    return std::to_string(++num_made);
  }
  void ask(int number) {
    page->ask([this, number](const std::string& body) { told.emplace_back(number, body); });
  }
  boost::asio::io_context io;
  int num_made = 0;
  std::vector<std::pair<int, std::string>> told;
  std::unique_ptr<SharedPage> page = std::make_unique<SharedPage>(io, [this] { return make(); });
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
