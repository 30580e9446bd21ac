// SPDX-License-Identifier: Apache-2.0
#include "common/endpoint.h"

#include "tests/support/catch.h"

using ddprun::Endpoint;
using ddprun::parse_endpoints;
using ddprun::parse_servers;
using ddprun::to_string;

TEST_CASE("EndpointList: one endpoint, or several with commas between, in their order") {
  CHECK(parse_endpoints("a", 29400).endpoints == std::vector<Endpoint>{{"a", 29400}});
  CHECK(parse_endpoints("a:0", 29400).endpoints == std::vector<Endpoint>{{"a", 0}});
  const auto list = parse_endpoints("b:7,a,[fd00::1]:77,::1,10.0.0.1", 29400);
  CHECK(list.problem.empty());
  CHECK(list.endpoints ==
        std::vector<Endpoint>{
            {"b", 7}, {"a", 29400}, {"fd00::1", 77}, {"::1", 29400}, {"10.0.0.1", 29400}});
  CHECK(to_string(list.endpoints) == "b:7,a:29400,[fd00::1]:77,[::1]:29400,10.0.0.1:29400");
  CHECK(parse_endpoints("1,2,3,4,5,6,7,8", 1).endpoints.size() == 8);
}

TEST_CASE("EndpointList: an invalid list is refused, by the part that is wrong") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "wants HOST or HOST:PORT (IPv6: [ADDR]:PORT)"},
      {":1", "wants HOST or HOST:PORT (IPv6: [ADDR]:PORT)"},
      {"a:x", "wants HOST or HOST:PORT (IPv6: [ADDR]:PORT)"},
      {"a,", "\"\" is not HOST or HOST:PORT (IPv6: [ADDR]:PORT)"},
      {",a", "\"\" is not HOST or HOST:PORT (IPv6: [ADDR]:PORT)"},
      {"a, b", "\" b\" is not HOST or HOST:PORT (IPv6: [ADDR]:PORT)"},
      {"a,b:x,c", "\"b:x\" is not HOST or HOST:PORT (IPv6: [ADDR]:PORT)"},
      {"a,:1", "\":1\" is not HOST or HOST:PORT (IPv6: [ADDR]:PORT)"},
      {"a:99999", "port 99999 is above 65535"},
      {"[::1]:65536,b", "port 65536 is above 65535"},
      {"::99999", "wants HOST or HOST:PORT (IPv6: [ADDR]:PORT)"},
      {"a,b:0", "b:0: of several endpoints each needs a port that is known"},
      {"a,b,a:29400", "has a:29400 twice"},
      {"Node,nODE", "has nODE:29400 twice"},
      {"1,2,3,4,5,6,7,8,9", "has 9 endpoints, at most 8 can be given"},
  };
  for (const auto& [text, problem] : cases) {
    CAPTURE(text);
    const auto list = parse_endpoints(text, 29400);
    CHECK(list.problem == problem);
    CHECK(list.endpoints.empty());
  }
  CHECK(parse_endpoints("a:1,a:2,b:1", 29400).problem.empty());
}

TEST_CASE("EndpointList: nobody listens at port 0") {
  CHECK(parse_servers("a:0", 29400).problem ==
        "nobody listens at port 0: give the port that the server has");
  CHECK(parse_servers("a:0", 29400).endpoints.empty());
  CHECK(parse_servers("a,b:7", 29400).endpoints.size() == 2);
  CHECK_FALSE(parse_servers("a:x", 29400).problem.empty());
}
