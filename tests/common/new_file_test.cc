// SPDX-License-Identifier: Apache-2.0
#include "common/regular_file.h"

#include <sys/stat.h>

#include <cerrno>

#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;

TEST_CASE("make_new_file: a name that is drawn, the mode that is asked for", "[proc]") {
  const test::TempDirectory temp;
  const NewFile one = make_new_file(temp.path("a."), 0600),
                two = make_new_file(temp.path("a."), 0600);
  REQUIRE(one.fd);
  REQUIRE(two.fd);
  CHECK(one.path.starts_with(temp.path("a.")));
  CHECK(one.path.size() == temp.path("a.").size() + 12);
  CHECK(one.path != two.path);
  struct stat info {};
  REQUIRE(::stat(one.path.c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0600);
}

TEST_CASE("make_new_file: errno says why no file could be made", "[proc]") {
  const test::TempDirectory temp;
  const NewFile file = make_new_file(temp.path("none/a."), 0600);
  CHECK(errno == ENOENT);
  CHECK_FALSE(file.fd);
}
