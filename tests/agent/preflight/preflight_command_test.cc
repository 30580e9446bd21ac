// SPDX-License-Identifier: Apache-2.0
#include "agent/preflight_command.h"

#include <optional>
#include <string>

#include "tests/agent/group_fixture.h"
#include "tests/support/errors.h"

namespace ddprun::agent {
namespace {

using ddprun::test::Contains;
using std::chrono::milliseconds;

// Runs `command` and keeps the argument of done().
struct Run : GroupFixture {
  explicit Run(const std::string& command, milliseconds limit = kPatience)
      : GroupFixture(false),
        preflight(io, console, {command, {"PATH=/usr/bin:/bin", "FRUIT=plum"}, limit},
                  [this](std::string what) { problem = std::move(what); }) {
    preflight.start();
    REQUIRE(wait_for([this] { return problem.has_value(); }));
  }

  std::optional<std::string> problem;
  PreflightCommand preflight;
};

}  // namespace

TEST_CASE("preflight command: exit status 0 is no problem, its output is ours, on stderr",
          "[proc]") {
  const Run run("echo to stdout $FRUIT; echo to stderr >&2");
  CHECK(run.problem == "");
  CHECK(run.out().empty());
  CHECK(run.err() == "to stdout plum\nto stderr\n");
}

TEST_CASE("preflight command: another status, with what it said last", "[proc]") {
  CHECK(Run("echo checking; echo GPU 3 is missing; exit 3").problem ==
        "failed with exit code 3; its last line: GPU 3 is missing");
  CHECK(Run("kill -9 $$").problem == "was killed by SIGKILL");
  CHECK(Run("no-such-check").problem->starts_with("failed with exit code 127; its last line: "));
  CHECK(Run("cat").problem == "");  // stdin is empty, so the program doesn't wait
}

TEST_CASE("preflight command: one that doesn't end is ended at the deadline, with all it started",
          "[proc]") {
  Run run("trap '' TERM; setsid sleep 1000 & echo $! >&2; while :; do sleep 0.05; done",
          milliseconds{300});
  CHECK(*run.problem == "had not ended after 0.3 s (--preflight-timeout)");
  REQUIRE_FALSE(run.err().empty());
  CHECK(::kill(std::stoi(run.err()), 0) != 0);
}

TEST_CASE("preflight command: processes that it leaves behind don't outlive it", "[proc]") {
  const Run run("setsid sleep 1000 & echo $! >&2");
  CHECK(run.problem == "");
  CHECK(::kill(std::stoi(run.err()), 0) != 0);
}

}  // namespace ddprun::agent
