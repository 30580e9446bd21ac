// SPDX-License-Identifier: Apache-2.0
#include "common/toml_keys.h"

#include <string>

#include "common/text.h"
#include "tests/support/catch.h"

namespace ddprun {
namespace {

std::string dotted(int num_parts, const std::string& part, const std::string& dot = ".") {
  return listed(std::vector<std::string>(num_parts, part), dot);
}

TEST_CASE("find_long_key: a key of too many parts, wherever keys stand") {
  const int most = kMostKeyParts;
  for (const std::string& part : {std::string("a"), std::string("-_9Z"), std::string("\"x y\""),
                                  std::string("'a.b'"), std::string("\"\\\"\"")}) {
    for (const std::string& dot : {std::string("."), std::string(" .\t")}) {
      CAPTURE(part, dot);
      CHECK_FALSE(find_long_key(dotted(most, part, dot) + " = 1"));
      CHECK(find_long_key("b = 2\n" + dotted(most + 1, part, dot) + " = 1") == 6);
      CHECK(find_long_key("[" + dotted(most + 1, part, dot) + "]") == 1);
      CHECK(find_long_key("a = {" + dotted(most + 1, part, dot) + " = 1}") == 5);
    }
  }
}

TEST_CASE("find_long_key: dots in texts, numbers and comments part no key") {
  const std::string dots = dotted(100, "a");
  CHECK_FALSE(find_long_key("a = \"" + dots + "\""));
  CHECK_FALSE(find_long_key("a = '" + dots + "'"));
  CHECK_FALSE(find_long_key("a = \"\"\"\n" + dots + "\n\"\"\"\nb = 1"));
  CHECK_FALSE(find_long_key("# " + dots));
  CHECK_FALSE(find_long_key("# " + dots + "\na = 1"));
  CHECK_FALSE(find_long_key("a = [" + dotted(100, "1.5", ", ") + "]"));
  CHECK_FALSE(find_long_key(dotted(100, "a", "\n")));
  CHECK_FALSE(find_long_key("\"\"\""));
  CHECK_FALSE(find_long_key(""));
}

}  // namespace
}  // namespace ddprun
