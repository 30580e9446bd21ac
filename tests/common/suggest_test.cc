// SPDX-License-Identifier: Apache-2.0
#include "common/suggest.h"

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddprun {
namespace {

TEST_CASE("did_you_mean: the nearest word is named, none if nothing is near") {
  const std::vector<std::string> names = {"max-restarts", "nnodes"};
  CHECK(did_you_mean("max_restart", names) == " (did you mean max-restarts?)");
  CHECK(did_you_mean("zebra", names).empty());
}

TEST_CASE("did_you_mean: a word without end is compared with none, and shown by its beginning") {
  const std::string word = "max-restarts" + std::string(std::size_t{1} << 24, 'x');
  const std::vector<std::string> names(100, "max-restarts");
  const auto cpu_time_of = [&](const std::string& asked) {
    const std::clock_t begun = std::clock();
    CHECK(did_you_mean(asked, names).empty() == (asked == word));
    return std::clock() - begun;
  };
  const auto compared = cpu_time_of("max-restart");
  CHECK(cpu_time_of(word) < 100 * std::max<std::clock_t>(compared, 100));
  CHECK(shown_word(word) == "max-restarts" + std::string(68, 'x') + "…");
  CHECK(shown_word("a\nb") == "a\\nb");
}

}  // namespace
}  // namespace ddprun
