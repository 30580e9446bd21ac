// SPDX-License-Identifier: Apache-2.0
#include "common/standard_streams.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/log_level.h"
#include "common/text.h"
#include "tests/support/catch.h"
#include "tests/support/forked_child.h"

using namespace ddprun;

namespace {

// Whether a process with that JOURNAL_STREAM begins its lines with `expected`, by level.
bool begins_lines_with(const std::string& expected, const std::string& stream) {
  return test::run_forked([&] {
           ::setenv("JOURNAL_STREAM", stream.c_str(), 1);
           std::string prefixes;
           for (const LogLevel level :
                {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
             prefixes += journal_prefix(level);
           }
           ::_exit(prefixes == expected ? 0 : 1);
         }).status == 0;
}

}  // namespace

TEST_CASE("journal_prefix: a priority where JOURNAL_STREAM names this stderr, else nothing") {
  struct stat status {};
  REQUIRE(::fstat(STDERR_FILENO, &status) == 0);
  const auto here = concat(status.st_dev, ':', status.st_ino);
  CHECK(begins_lines_with("<7><6><4><3>", here));
  for (const std::string& other :
       {std::string(), here + "0", std::string("8:1"), std::string("x")}) {
    CHECK(begins_lines_with("", other));
  }
}
