// SPDX-License-Identifier: Apache-2.0
#include "common/process_facts.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("own_folder holds the running program") {
  CHECK(::access((own_folder() + "/common_test").c_str(), X_OK) == 0);
}

TEST_CASE("host_name has no surprise in it") {
  CHECK_FALSE(host_name().empty());
  CHECK(host_name().find_first_of(" \n") == std::string::npos);
}

TEST_CASE("start_ticks: an older process has a smaller number, an ended one has none") {
  const auto init = start_ticks(1), ours = start_ticks(::getpid());
  REQUIRE(ours);
  if (init) CHECK(*init <= *ours);
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  CHECK(start_ticks(child).value_or(0) >= *ours);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK_FALSE(start_ticks(child));
}

TEST_CASE("resident_bytes: a living process has a size, a missing one has none") {
  const auto ours = resident_bytes(::getpid());
  REQUIRE(ours);
  CHECK(*ours > 100'000);
  CHECK(*ours % 1024 == 0);
  CHECK_FALSE(resident_bytes(0x7fff'fff0));
}
