// SPDX-License-Identifier: Apache-2.0
#include "common/quiet_thread.h"

#include <pthread.h>
#include <signal.h>

#include <string>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/no_more_threads.h"

using namespace ddprun;
using ddprun::test::code_of;

namespace {

bool is_blocked(int signal) {
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

}  // namespace

TEST_CASE("start_quiet_thread: the thread takes no signals, the caller goes on taking them") {
  bool blocked_there = false;
  std::thread thread = start_quiet_thread("quiet", [&] { blocked_there = is_blocked(SIGTERM); });
  CHECK_FALSE(is_blocked(SIGTERM));
  thread.join();
  CHECK(blocked_there);
}

TEST_CASE("start_quiet_thread: the caller goes on taking signals when there is no thread for it") {
  std::string what;
  std::optional<ErrorCode> code;
  {
    const test::NoMoreThreads none;
    code = code_of([] { start_quiet_thread("quiet", [] {}).join(); }, &what);
  }
  CHECK(code == ErrorCode::kResourceExhausted);
  CHECK_THAT(what, test::Contains("can't start the thread quiet"));
  CHECK_FALSE(is_blocked(SIGTERM));
}
