// SPDX-License-Identifier: Apache-2.0
#include "common/shell_words.h"

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("Shell words: words are quoted so that a shell reads them back") {
  CHECK(shell_quoted("--nnodes=2") == "--nnodes=2");
  CHECK(shell_quoted("a b") == "'a b'");
  CHECK(shell_quoted("") == "''");
  CHECK(shell_quoted("it's") == "'it'\\''s'");
  CHECK(shell_quoted("$HOME") == "'$HOME'");
  CHECK(shell_line({"echo", "a b", "c"}) == "echo 'a b' c");
  CHECK(shell_line({}).empty());
}
