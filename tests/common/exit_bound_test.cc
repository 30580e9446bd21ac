// SPDX-License-Identifier: Apache-2.0
#include "common/bounded_call.h"

#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/forked_child.h"

using namespace ddprun;
using std::chrono::hours;
using std::chrono::milliseconds;
using test::run_forked;

namespace {

void hang() {
  for (;;) ::pause();
}

struct HangsWhenItGoes {
  ~HangsWhenItGoes() { hang(); }
};

}  // namespace

TEST_CASE("bound_exit: a handler that hangs is not waited for, and the status stays", "[proc]") {
  const auto end = run_forked([] {
    std::atexit(hang);
    bound_exit(milliseconds(50));
    std::exit(7);
  });
  CHECK(end.status == 7);
  CHECK(end.took < milliseconds(10'000));
}

TEST_CASE("bound_exit: the destructors of static objects are bounded, too", "[proc]") {
  const auto end = run_forked([] {
    static const HangsWhenItGoes object;
    bound_exit(milliseconds(50));
    std::exit(7);
  });
  CHECK(end.status == 7);
}

TEST_CASE("bound_exit: the shortest limit counts, from exit() on", "[proc]") {
  const auto end = run_forked([] {
    std::atexit(hang);
    bound_exit(hours(1));
    bound_exit(milliseconds(50));
    bound_exit(hours(1));
    // It lives on for six times the limit. No event could tell that nothing ends it.
    std::this_thread::sleep_for(milliseconds(300));
    std::exit(7);
  });
  CHECK(end.status == 7);
  CHECK(end.took >= milliseconds(300));
  CHECK(end.took < milliseconds(10'000));
}

TEST_CASE("bound_exit: a process that ends by itself isn't waited for, and its handlers run",
          "[proc]") {
  const auto end = run_forked([] {
    std::atexit([] { ::_exit(9); });
    bound_exit(hours(1));
    std::exit(7);
  });
  CHECK(end.status == 9);
  CHECK(end.took < milliseconds(10'000));
}

TEST_CASE("bound_exit: a handler that came later has no limit", "[proc]") {
  const auto end = run_forked([] {
    bound_exit(milliseconds(50));
    std::atexit([] {
      std::this_thread::sleep_for(milliseconds(300));  // the same wait as above
      ::_exit(9);
    });
    std::exit(7);
  });
  CHECK(end.status == 9);
}

TEST_CASE("bound_exit: a handler that came later has the limit of the next call", "[proc]") {
  const auto end = run_forked([] {
    bound_exit(milliseconds(50));
    std::atexit(hang);
    bound_exit(milliseconds(50));
    std::exit(7);
  });
  CHECK(end.status == 7);
}
