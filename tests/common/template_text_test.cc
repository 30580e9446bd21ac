// SPDX-License-Identifier: Apache-2.0
#include "common/text.h"

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("template text: variables are replaced as by Python's string.Template.safe_substitute") {
  const auto filled = [](const char* text) {
    return safe_substitute(text, {{"local_rank", "3"}, {"rank", "$rank"}});
  };
  CHECK(filled("--dev=${local_rank}") == "--dev=3");
  CHECK(filled("$local_rank") == "3");
  CHECK(filled("$local_rank/$local_rank${local_rank}x") == "3/33x");
  CHECK(filled("$rank") == "$rank");  // a value is not looked at again
  CHECK(filled("${other} $other $Local_rank $local_rank0 $local_rank_") ==
        "${other} $other $Local_rank $local_rank0 $local_rank_");
  CHECK(filled("$$local_rank $$$local_rank $$$$") == "$local_rank $3 $$");
  CHECK(filled("${local_rank $ {local_rank} ${} $1 $") == "${local_rank $ {local_rank} ${} $1 $");
  CHECK(filled("${ local_rank } ${local_rank:-0}") == "${ local_rank } ${local_rank:-0}");
  CHECK(filled("$lócal_rank") == "$lócal_rank");
  CHECK(safe_substitute("$$ $$a $a", {{"a", "1"}}, DoubleDollar::kStays) == "$$ $$a 1");
  CHECK(filled("") == "");
  CHECK(filled("plain") == "plain");
}
