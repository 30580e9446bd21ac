// SPDX-License-Identifier: Apache-2.0
#include "launcher/config_file.h"

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
  CHECK(parse_config_file("preflight = \"check --quick\"", "f").preflight == "check --quick");
}

TEST_CASE("config file: what is wrong is named with file and line") {
  CHECK_THROWS_WITH(parse_config_file("\nrdzv_endpoint = head", "f"), StartsWith("f:2: "));
  CHECK_THROWS_WITH(parse_config_file("rdzv_endpoint = 7", "f"), StartsWith("f:1: rdzv_"));
  CHECK_THROWS_WITH(parse_config_file("preflight = 1", "f"), Contains("preflight wants"));
  CHECK_THROWS_WITH(parse_config_file("hosts = \"a\"", "f"), Contains("hosts wants"));
  CHECK_THROWS_WITH(parse_config_file("\n\nrdzv_endpont = \"a\"", "f"),
                    Contains("f:3: unknown key") && Contains("rdzv_endpoint?"));
}
