// SPDX-License-Identifier: Apache-2.0
#include "launcher/config_file.h"

#include <map>

#include "common/error.h"
#include "tests/support/catch.h"

using Catch::Matchers::StartsWith;
using ddprun::launcher::parse_config_file;
using ddprun::test::Contains;

TEST_CASE("config file: an endpoint, a list of hosts, comments, or nothing") {
  CHECK(parse_config_file("", "f").rdzv_endpoint.empty());
  CHECK(parse_config_file("# the cluster's\nrdzv_endpoint = \"head:29400\"\n", "f").rdzv_endpoint ==
        "head:29400");
  CHECK(parse_config_file("hosts = [\"n1\",\n  \"n2\"]", "f").hosts ==
        std::vector<std::string>{"n1", "n2"});
  CHECK(parse_config_file("topology = \"pod1.rack7\"", "f").topology == "pod1.rack7");
}

TEST_CASE("config file: options by their names, with the line that gives them") {
  const auto file = parse_config_file(
      "nnodes = \"1:2\"\nmax_restarts = 3\nshutdown_timeout = 2.5\nprewarm = false\n"
      "hang-action = \"off\"",
      "f");
  REQUIRE(file.options.size() == 5);
  std::map<std::string, std::pair<std::string, int>> by_name;
  for (const auto& entry : file.options) by_name[entry.option] = {entry.value, entry.line};
  CHECK(by_name["nnodes"] == std::pair<std::string, int>("1:2", 1));
  CHECK(by_name["max-restarts"] == std::pair<std::string, int>("3", 2));
  CHECK(by_name["shutdown-timeout"] == std::pair<std::string, int>("2.5", 3));
  CHECK(by_name["prewarm"] == std::pair<std::string, int>("0", 4));
  CHECK(by_name["hang-action"] == std::pair<std::string, int>("off", 5));
  CHECK_THROWS_WITH(parse_config_file("prewarm = \"yes\"", "f"), Contains("wants true or false"));
  CHECK_THROWS_WITH(parse_config_file("nnodes = true", "f"), Contains("nnodes wants"));
  CHECK_THROWS_WITH(parse_config_file("nnodes = [1]", "f"), Contains("nnodes wants"));
  CHECK_THROWS_WITH(parse_config_file("help = true", "f"), Contains("unknown key help"));
}

TEST_CASE("config file: all that is wrong is told, in the order of the file, a line for each") {
  CHECK_THROWS_WITH(parse_config_file("zz = 1\nhosts = 3\nnnodes = 2\n\"a\\nb\" = 1\n"
                                      "rdzv_endpoint = 7\nmax_restarts = [1]",
                                      "f"),
                    StartsWith("f:1: unknown key zz\nf:2: hosts wants ") &&
                        Contains("\nf:4: unknown key a\\nb\nf:5: rdzv_endpoint wants ") &&
                        Contains("\nf:6: max_restarts wants "));
}

TEST_CASE("config file: an error is named with file and line") {
  CHECK_THROWS_WITH(parse_config_file("\nrdzv_endpoint = head", "f"), StartsWith("f:2: "));
  CHECK_THROWS_WITH(parse_config_file("rdzv_endpoint = 7", "f"), StartsWith("f:1: rdzv_"));
  CHECK_THROWS_WITH(parse_config_file("preflight = true", "f"), Contains("preflight wants"));
  CHECK_THROWS_WITH(parse_config_file("hosts = \"a\"", "f"), Contains("hosts wants"));
  std::string deep = "a";
  for (int i = 0; i < 100'000; ++i) deep += ".a";
  CHECK_THROWS_WITH(parse_config_file("nnodes = 1\n  " + deep + " = 1", "f"),
                    "f:2: it is no TOML here, at column 3: a key has more than 32 parts");
  CHECK_THROWS_WITH(parse_config_file("nno\u0260des = 1", "f"), StartsWith("f:1: "));
  CHECK_THROWS_WITH(parse_config_file("nnodes = 1\n[;x", "f"), StartsWith("f:2: "));
  CHECK_THROWS_WITH(parse_config_file("\n\nrdzv_endpont = \"a\"", "f"),
                    Contains("f:3: unknown key") && Contains("rdzv_endpoint?"));
}
