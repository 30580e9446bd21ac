// SPDX-License-Identifier: Apache-2.0
#include "common/suggest.h"

#include "common/clock.h"
#include "tests/support/catch.h"

namespace ddprun {
namespace {

TEST_CASE("did_you_mean: the nearest one, and none for what is near to nothing") {
  const std::vector<std::string> names = {"max-restarts", "nnodes"};
  CHECK(did_you_mean("max_restart", names) == " (did you mean max-restarts?)");
  CHECK(did_you_mean("zebra", names).empty());
}

TEST_CASE("did_you_mean: a word without end is compared with none, and shown by its beginning") {
  const std::string word = "max-restarts" + std::string(std::size_t{1} << 24, 'x');
  const Clock::time_point begun = Clock::now();
  CHECK(did_you_mean(word, std::vector<std::string>(100, "max-restarts")).empty());
  CHECK(Clock::now() - begun < std::chrono::seconds(1));
  CHECK(shown_word(word) == "max-restarts" + std::string(68, 'x') + "…");
  CHECK(shown_word("a\nb") == "a\\nb");
}

}  // namespace
}  // namespace ddprun
