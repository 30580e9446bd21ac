// SPDX-License-Identifier: Apache-2.0
// The daemon's port tells a page in a browser from a program (http/browser.h).
#include "rendezvous/http/browser.h"

#include "common/text.h"
#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous::testing {
namespace {

using ddprun::test::Contains;

http::Request asked_as(const std::string& host) {
  http::Request request;
  request.fields.add("Host", host);
  return request;
}

TEST_CASE("Browser: a Host that is a name of this machine, or an address") {
  for (const char* host :
       {"127.0.0.1", "127.0.0.1:29400", "10.0.0.7:80", "[::1]:29400", "[fd00::1]", "localhost",
        "LocalHost:29400", "node7.cluster:29400", "NODE7"}) {
    INFO(host);
    CHECK(http::names_this_machine(asked_as(host), "node7.cluster"));
  }
  for (const char* host : {"evil.test", "evil.test:29400", "localhost.evil.test", "node7.evil.test",
                           "127.0.0.1.evil.test", "", ":29400", "[evil]", "0x7f.1", "cluster",
                           "[::1].evil.test", "[::1", "localhost:80@evil.test"}) {
    INFO(host);
    CHECK_FALSE(http::names_this_machine(asked_as(host), "node7.cluster"));
  }
  CHECK(http::names_this_machine(http::Request(), "node7"));  // no browser sent this one
  CHECK_FALSE(http::names_this_machine(asked_as(""), ""));
  CHECK_FALSE(http::is_rebound(asked_as("evil.test"), -1));  // the connection was closed meanwhile
}

TEST_CASE("Browser: a request of another site is not of the same origin") {
  const auto is_same = [](const char* site, const char* origin) {
    http::Request request = asked_as("localhost:29400");
    if (site != nullptr) request.fields.add("Sec-Fetch-Site", site);
    if (origin != nullptr) request.fields.add("Origin", origin);
    return http::is_same_origin(request);
  };
  CHECK(is_same(nullptr, nullptr));
  CHECK(is_same("same-origin", nullptr));
  CHECK(is_same("none", nullptr));  // a person typed the address
  CHECK(is_same("same-origin", "http://localhost:29400"));
  for (const char* site : {"cross-site", "same-site", "of the future"}) {
    INFO(site);
    CHECK_FALSE(is_same(site, nullptr));
    CHECK_FALSE(is_same(site, "http://localhost:29400"));
  }
  CHECK_FALSE(is_same("same-origin", "http://evil.test"));
}

TEST_CASE("Browser: a request that changes something is not for a page, whatever its origin") {
  DaemonOptions options;
  options.has_gangs = true;
  ServedDaemon daemon(options);
  const auto post = [&](const std::string& fields) {
    return daemon.exchange("POST /v1/gangs HTTP/1.1\r\nHost: localhost\r\n" + fields +
                           "Content-Length: 2\r\n\r\n{}");
  };
  CHECK_THAT(post(""), Contains("400 Bad Request"));  // the body is no gang
  CHECK_THAT(post("Content-Type: application/json\r\n"), Contains("400 Bad Request"));
  for (const char* fields :
       {"Origin: http://localhost\r\n", "Origin: null\r\n", "Sec-Fetch-Site: same-origin\r\n"}) {
    INFO(fields);
    CHECK_THAT(post(fields), Contains("403 Forbidden") && Contains("for programs, not for a page"));
  }
  for (const char* type :
       {"text/plain", "Text/Plain;charset=UTF-8", "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded"}) {
    INFO(type);
    CHECK_THAT(post(concat("Content-Type: ", type, "\r\n")),
               Contains("403 Forbidden") && Contains("send it as application/json"));
  }
  std::string upgrade = kUpgrade;
  upgrade.insert(upgrade.find("\r\n") + 2, "Origin: http://localhost\r\n");
  CHECK_THAT(daemon.exchange(upgrade), Contains("403 Forbidden"));
}

TEST_CASE("Browser: a name that was made to resolve here changes nothing and opens no WebSocket") {
  DaemonOptions options;
  options.has_gangs = true;
  ServedDaemon daemon(options);
  const auto check_refused = [&](const std::string& request) {
    CHECK_THAT(daemon.exchange(request), Contains("403 Forbidden") && Contains(http::kForeignHost));
  };
  check_refused("POST /v1/gangs HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 2\r\n\r\n{}");
  std::string upgrade = kUpgrade;
  upgrade.replace(upgrade.find("localhost"), 9, "evil.test");
  check_refused(upgrade);
  upgrade.replace(upgrade.find("/v1/agent"), 9, "/v1/node");
  check_refused(upgrade);
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
