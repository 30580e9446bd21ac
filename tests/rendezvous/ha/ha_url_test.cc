// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/ha_url.h"

#include "common/error.h"
#include "tests/support/catch.h"

namespace ddprun::ha {
namespace {

using ddprun::test::Contains;

TEST_CASE("HaUrl: hosts, ports and the prefix, with what is usual where none is given") {
  const HaUrl plain = parse_ha_url("etcd://e1");
  REQUIRE(plain.endpoints.size() == 1);
  CHECK(plain.endpoints[0] == Endpoint{"e1", 2379});
  CHECK(plain.prefix == "/ddprun");

  const HaUrl whole = parse_ha_url("etcd://e1:1,[::1]:2,10.0.0.3/a/b//");
  REQUIRE(whole.endpoints.size() == 3);
  CHECK(whole.endpoints[1] == Endpoint{"::1", 2});
  CHECK(whole.endpoints[2] == Endpoint{"10.0.0.3", 2379});
  CHECK(whole.prefix == "/a/b");
  CHECK(parse_ha_url("etcd://e1/").prefix == "/ddprun");
}

TEST_CASE("HaUrl: an invalid URL is refused with the reason") {
  CHECK_THROWS_WITH(parse_ha_url("http://e1"), Contains("does not begin with etcd://"));
  CHECK_THROWS_WITH(parse_ha_url(""), Contains("does not begin with etcd://"));
  CHECK_THROWS_WITH(parse_ha_url("etcd://"), Contains("\"\" is no HOST or HOST:PORT"));
  CHECK_THROWS_WITH(parse_ha_url("etcd://a,"), Contains("\"\" is no HOST or HOST:PORT"));
  CHECK_THROWS_WITH(parse_ha_url("etcd://a:0"), Contains("\"a:0\" is no HOST"));
  CHECK_THROWS_WITH(parse_ha_url("etcd://a:x/p"), Contains("\"a:x\" is no HOST"));
  CHECK_THROWS_WITH(parse_ha_url("etcd://a,b,a:2379"), Contains("a:2379 is named twice"));
  CHECK_THROWS_WITH(parse_ha_url("etcd://a/p q"), Contains("prefix"));
  CHECK_THROWS_WITH(parse_ha_url("etcd://a/p?lease=3"), Contains("prefix"));
}

}  // namespace
}  // namespace ddprun::ha
