// SPDX-License-Identifier: Apache-2.0
#include "common/nodelist.h"

#include "tests/support/catch.h"

using ddprun::expand_nodelist;
using Hosts = std::vector<std::string>;

TEST_CASE("nodelist: Slurm's spellings") {
  CHECK(expand_nodelist("n1") == Hosts{"n1"});
  CHECK(expand_nodelist("a,b") == Hosts{"a", "b"});
  CHECK(expand_nodelist("n[01-04,7]") == Hosts{"n01", "n02", "n03", "n04", "n7"});
  CHECK(expand_nodelist("n[099-101]") == Hosts{"n099", "n100", "n101"});
  CHECK(expand_nodelist("r[1-2]n[1,3]-ib,x") ==
        Hosts{"r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib", "x"});
}

TEST_CASE("nodelist: an invalid text is no list") {
  for (const char* text : {"", ",", "a,", "n[", "n[1", "n]1", "n[1-]", "n[a]", "n[2-1]", "n[]",
                           "n[[1]]", "n[1-999999999]", "a b"}) {
    CAPTURE(text);
    CHECK_FALSE(expand_nodelist(text).has_value());
  }
}

TEST_CASE("nodelist: a text of a few bytes doesn't fill the memory") {
  CHECK(expand_nodelist("n[18446744073709551614-18446744073709551615]") ==
        Hosts{"n18446744073709551614", "n18446744073709551615"});
  std::string ranges = "n[0-99999";
  for (int i = 0; i < 10'000; ++i) ranges += ",0-99999";
  const std::string zeros(10'000, '0'), letters(10'000, 'n');
  for (const std::string& text : {ranges + "]", "n[" + zeros + "1-99999]", letters + "[1-99999]"}) {
    CAPTURE(text.substr(0, 20));
    CHECK_FALSE(expand_nodelist(text).has_value());
  }
}
