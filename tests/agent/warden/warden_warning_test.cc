// SPDX-License-Identifier: Apache-2.0
// ddprun-warden itself: a warning reaches the right processes.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "tests/agent/warden/raw_warden.h"

namespace ddprun::agent {
namespace {

using warden::ReportType;

// The next byte of a pipe; 0: none in time.
char next_byte(int fd) {
  pollfd ready{fd, POLLIN, 0};
  char byte = 0;
  if (::poll(&ready, 1, static_cast<int>(kPatience / std::chrono::milliseconds{1})) != 1) return 0;
  return ::read(fd, &byte, 1) == 1 ? byte : '\0';
}

// The warden waits in the middle of its requests, because nobody reads its reports. The worker
// execs meanwhile. The warden takes the warning before it has looked at that exec.
TEST_CASE("warden: a warning reaches a worker whose exec it has not looked at yet", "[proc]") {
  constexpr std::string_view kRefused("\0", 1);  // a spawn request without a program
  constexpr int kNumRefused = 32;                // more refusals than the socket has room for
  constexpr int kLittleRoom = 1;                 // the kernel makes it its least: a few reports
  constexpr std::string_view kHandles(
      "\0/bin/sh\0-c\0"
      "trap 'exit 75' USR1; echo u; sleep 1000 & wait",
      59);
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd output(ends[0]);
  const UniqueFd its_end(ends[1]);
  RawWarden warden(kLittleRoom);
  warden.stop();
  warden.spawn(kHandles, its_end.get());
  for (int i = 0; i < kNumRefused; ++i) warden.spawn(kRefused);
  warden.go_on();
  REQUIRE(next_byte(output.get()) == 'u');
  warden.warn(SIGUSR1);
  for (int i = 0; i < kNumRefused; ++i) REQUIRE(warden.hears(ReportType::kNotStarted));
  REQUIRE(warden.hears(ReportType::kStarted));
  REQUIRE(warden.hears(ReportType::kExited));
  CHECK(WIFEXITED(warden.last().wait_status));
  CHECK(WEXITSTATUS(warden.last().wait_status) == 75);
}

}  // namespace
}  // namespace ddprun::agent
