// SPDX-License-Identifier: Apache-2.0
#include "common/regular_file.h"

#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
namespace fs = std::filesystem;

TEST_CASE("dangling_link: names the first link on the way whose target is not there", "[proc]") {
  const test::TempDirectory temp;
  fs::create_directory(temp.path("there"));
  fs::create_symlink(temp.path("there"), temp.path("good"));
  fs::create_symlink("gone", temp.path("bad"));
  const std::string expected = temp.path("bad") + " is a link to gone, which does not exist";
  CHECK(dangling_link(temp.path("bad")) == expected);
  CHECK(dangling_link(temp.path("bad/below/it")) == expected);
  CHECK(dangling_link(temp.path("good/nothing")).empty());
  CHECK(dangling_link(temp.path("good")).empty());
  CHECK(dangling_link(temp.path("nothing/at/all")).empty());
  fs::create_symlink(temp.path("bad"), temp.path("there/chain"));
  CHECK(dangling_link(temp.path("good/chain")) ==
        temp.path("good/chain") + " is a link to " + temp.path("bad") + ", which does not exist");
}
