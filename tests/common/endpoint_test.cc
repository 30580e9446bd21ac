// SPDX-License-Identifier: Apache-2.0
#include "common/endpoint.h"

#include "tests/support/catch.h"

using ddprun::Endpoint;
using ddprun::parse_endpoint;
using ddprun::to_string;

TEST_CASE("Endpoint: every spelling that users type") {
  CHECK(parse_endpoint("node0", 29400) == Endpoint{"node0", 29400});
  CHECK(parse_endpoint("node0:1234", 29400) == Endpoint{"node0", 1234});
  CHECK(parse_endpoint("10.0.0.1:0", 29400) == Endpoint{"10.0.0.1", 0});
  CHECK(parse_endpoint("[fd00::1]:77", 29400) == Endpoint{"fd00::1", 77});
  CHECK(parse_endpoint("[fd00::1]", 29400) == Endpoint{"fd00::1", 29400});
  CHECK(parse_endpoint("::1", 29400) == Endpoint{"::1", 29400});
  CHECK(parse_endpoint(":77", 29400) == Endpoint{"", 77});
}

TEST_CASE("Endpoint: names_loopback() knows loopback in any notation") {
  for (const char* text :
       {"localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "127.1", "2130706433", "0x7f000001",
        "017700000001", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"}) {
    CAPTURE(text);
    CHECK(ddprun::names_loopback(text));
  }
  for (const char* text : {"", "node0", "localhost.evil.test", "10.0.0.1", "::", "::2", "0.0.0.0",
                           "::ffff:10.0.0.1"}) {
    CAPTURE(text);
    CHECK_FALSE(ddprun::names_loopback(text));
  }
}

TEST_CASE("Endpoint: an invalid endpoint is refused") {
  for (const char* text :
       {"", "a:", "a:x", "a:65536", "a:-1", "a:1x", "[::1", "[]:1", "[::1]1", "a b", "http://a",
        ":::", "a:1:2", "[a]:1", "[::1%]x", "a\nb", "a\x01", "a\x7f:1"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_endpoint(text, 1).has_value());
  }
}

TEST_CASE("Endpoint: is_host() takes names and addresses, and no other text") {
  for (const char* text : {"node0", "a_b.c", "10.0.0.1", "::1", "fe80::1%eth0", "knöten"}) {
    CAPTURE(text);
    CHECK(ddprun::is_host(text));
  }
  for (const char* text :
       {"",    " ",   "a b", "a:1",  "[::1]", "a\tb", ":::", "a;b", "$(x)", "`x`", "a|b",
        "a&b", "a>b", "a'b", "a\"b", "a\\b",  "a*",   "a~b", "a!b", "a@b",  "a=b", "a\x7f"}) {
    CAPTURE(text);
    CHECK_FALSE(ddprun::is_host(text));
  }
  CHECK_FALSE(ddprun::is_host(std::string(256, '9')));
}

TEST_CASE("Endpoint: printed so that it reads back") {
  for (const char* text : {"node0:1", "10.0.0.1:29400", "[fd00::1]:77"}) {
    CHECK(to_string(*parse_endpoint(text, 1)) == text);
  }
}
