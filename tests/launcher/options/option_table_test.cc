// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_table.h"

#include <fstream>
#include <set>
#include <sstream>

#include "launcher/options/printed_texts.h"
#include "tests/support/catch.h"

using namespace ddprun::launcher;
using ddprun::test::Contains;

TEST_CASE("options: the defaults that are told are those that count") {
  for (const Option& option : option_table()) {
    CAPTURE(option.name);
    if (option.fallback.empty()) continue;
    LaunchConfig config;
    CHECK(option.set(option.fallback, config) == "");
    CHECK(config == LaunchConfig());
  }
}

TEST_CASE(
    "options: each has its own name and letter, a help of one line, and stands in its group") {
  std::set<std::string> names, groups;
  std::set<char> letters;
  std::string group;
  for (const Option& option : option_table()) {
    CAPTURE(option.name);
    CHECK(names.insert(underscored(option.name)).second);
    CHECK((option.letter == 0 || letters.insert(option.letter).second));
    CHECK_FALSE(option.help.empty());
    CHECK(option.help.find('\n') == std::string::npos);
    if (option.group != group) CHECK(groups.insert(option.group).second);
    group = option.group;
    CHECK_THAT(help_text(), Contains("--" + option.name));
  }
  CHECK(find_option("max_restarts") == find_option("max-restarts"));
  CHECK(find_option("max") == nullptr);
}

TEST_CASE("options: every one is in docs/launcher.md") {
  std::ifstream file(DDPRUN_SOURCE_DIR "/docs/launcher.md");
  std::ostringstream text;
  text << file.rdbuf();
  for (const Option& option : option_table()) {
    const bool is_limit =
        text.str().find("| `" + underscored(option.name) + "` |") != std::string::npos;
    CAPTURE(option.name);
    CHECK((is_limit || text.str().find("`--" + option.name) != std::string::npos ||
           text.str().find("`, `--" + option.name) != std::string::npos));
  }
}
