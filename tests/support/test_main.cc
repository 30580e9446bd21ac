// SPDX-License-Identifier: Apache-2.0
// The main function of every C++ test program: Catch2's own, and the exit status of skipped tests.
// The linker gives us Catch2's main as __real_main (--wrap=main), so we needn't compile it here.
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // Catch2 2's listeners; Catch2 3 needs no such line
#include <cstdio>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/seed.h"

namespace ddprun::test {
namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in cmake/DdprunTargets.cmake

int num_ran = 0;
int num_skipped = 0;
bool is_skipped = false;  // the running case

#if CATCH_VERSION_MAJOR >= 3
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

struct CaseCounter : Listener {
  using Listener::Listener;
  void testCaseEnded(const Catch::TestCaseStats&) override {
    ++num_ran;
    num_skipped += std::exchange(is_skipped, false) ? 1 : 0;
  }
};

CATCH_REGISTER_LISTENER(CaseCounter)

}  // namespace

void note_skip(const char* reason) {
  std::printf("SKIPPED: %s\n", reason);
  std::fflush(stdout);
  is_skipped = true;
}

}  // namespace ddprun::test

extern "C" int __real_main(int argc, char** argv);

extern "C" int __wrap_main(int argc, char** argv) {
  using namespace ddprun::test;
  const int status = __real_main(argc, argv);
  if (status != 0) return status;
  forget_seeds();
  return num_ran > 0 && num_skipped == num_ran ? kSkipped : 0;
}
