// SPDX-License-Identifier: Apache-2.0
// Tests with real etcd servers.
#include "rendezvous/ha/etcd_client.h"

#include <fstream>
#include <string>
#include <thread>

#include "common/text.h"
#include "rendezvous/security/certificates.h"
#include "tests/rendezvous/ha/etcd_clients.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/sanitizers.h"
#include "tests/support/secret_file.h"

namespace ddprun::ha::testing {
namespace {

using namespace std::chrono_literals;
using test::code_of;
using test::contains;

TEST_CASE("EtcdClient: keys, guards and what they show where they don't hold", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  OneEtcd etcd;
  EtcdClient client(etcd.options());
  CHECK(client.get("leader") == std::nullopt);

  const TxnResult made = client.change_if({{"leader", 0}}, {{"leader", "me"}, {"other", "x"}});
  REQUIRE(made.held);
  const auto leader = client.get("leader");
  REQUIRE(leader);
  CHECK(leader->value == "me");
  CHECK(leader->create_revision == made.revision);
  CHECK(leader->mod_revision == made.revision);

  const TxnResult late = client.change_if({{"leader", 0}}, {{"leader", "you"}});
  CHECK_FALSE(late.held);
  CHECK(late.found == std::vector<std::optional<KeyValue>>{leader});
  CHECK(client.get("leader") == leader);

  CHECK(client.change_if({{"leader", made.revision}}, {}).held);
  const Guard old{"leader", made.revision, made.revision};
  const TxnResult changed =
      client.change_if({old}, {{"leader", "me again"}, {"other", std::nullopt}});
  CHECK(changed.held);
  CHECK(changed.revision > made.revision);
  CHECK(client.get("other") == std::nullopt);
  CHECK_FALSE(client.change_if({old}, {}).held);
  CHECK(client.change_if({{"leader", made.revision}}, {}).held);

  const std::string bytes("\0\xff\"\\\n\x80", 6);
  CHECK(client.change_if({}, {{bytes, bytes}}).held);
  CHECK(client.get(bytes)->value == bytes);
}

TEST_CASE("EtcdClient: all keys of a prefix, many and large ones, erased at once", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  OneEtcd etcd;
  EtcdClient client(etcd.options());
  std::vector<std::string> keys;
  for (int i = 0; i < 1500; ++i) keys.push_back(concat("p/", 10'000 + i));
  for (std::size_t i = 0; i < keys.size(); i += 100) {
    std::vector<KeyChange> changes;
    for (std::size_t j = i; j < i + 100; ++j) changes.push_back({keys[j], concat("value ", j)});
    REQUIRE(client.change_if({}, changes).held);
  }
  // 30 values are more than one answer may have.
  const int num_large = test::fewer_if_sanitized(30, 4);
  for (int i = 0; i < num_large; ++i) {
    keys.push_back(concat("p/z", 100 + i));
    REQUIRE(client.change_if({}, {{keys.back(), std::string(1 << 20, 'x')}}).held);
  }
  REQUIRE(client.change_if({}, {{"p0", "behind"}, {"o", "before"}}).held);
  const std::vector<KeyValue> found = client.get_prefix("p/");
  REQUIRE(found.size() == keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) CHECK(found[i].key == keys[i]);
  CHECK(found[1234].value == "value 1234");
  CHECK(found.back().value.size() == 1 << 20);

  REQUIRE(client.change_if({}, {{"p/", std::nullopt, 0, true}}).held);
  CHECK(client.get_prefix("p/").empty());
  CHECK(client.get("p0"));
  CHECK(client.get("o"));
}

TEST_CASE("EtcdClient: leases keep keys, and end", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  OneEtcd etcd;
  EtcdClient client(etcd.options());
  const std::int64_t lease = client.grant_lease(60s);
  CHECK(client.change_if({{"leader", 0}}, {{"leader", "me", lease}}).held);
  CHECK(client.get("leader")->lease == lease);
  CHECK(client.keep_alive(lease));
  client.revoke(lease);
  CHECK(client.get("leader") == std::nullopt);
  CHECK_FALSE(client.keep_alive(lease));
  client.revoke(lease);
  std::string what;
  CHECK(code_of(
            [&] {
              client.change_if({}, {{"leader", "me", lease}});
            },
            &what) == ErrorCode::kUnavailable);
  CHECK(contains(what, "requested lease not found"));
}

TEST_CASE("EtcdClient: an erasure is heard of at once", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  OneEtcd etcd;
  EtcdClient client(etcd.options()), other(etcd.options());
  const auto make = [&](std::int64_t lease) {
    return other.change_if({{"leader", 0}}, {{"leader", "me", lease}}).revision;
  };
  std::int64_t revision = make(0);

  SECTION("when it happens") {
    Clock::time_point erased, heard;
    std::thread waits([&] {
      client.await_erased("leader", revision, Deadline::after(20s));
      heard = Clock::now();
    });
    // A change is no erasure. The watch may begin before or after the change, and before or after
    // the erasure.
    other.change_if({}, {{"leader", "me again"}});
    std::this_thread::sleep_for(200ms);
    erased = Clock::now();
    other.change_if({}, {{"leader", std::nullopt}});
    waits.join();
    CHECK(heard >= erased);
    CHECK(heard - erased < 5s);  // long before the deadline
  }
  SECTION("by the end of a lease") {
    other.change_if({}, {{"leader", std::nullopt}});
    const std::int64_t lease = other.grant_lease(1s);
    revision = make(lease);
    const auto begun = Clock::now();
    client.await_erased("leader", revision, Deadline::after(20s));
    CHECK(Clock::now() - begun < 10s);
    CHECK(client.get("leader") == std::nullopt);
    CHECK_FALSE(client.keep_alive(lease));
    CHECK_FALSE(client.change_if({{"leader", revision}}, {{"row", "x"}}).held);
    CHECK(client.get("row") == std::nullopt);
  }
  SECTION("when it has happened") {
    other.change_if({}, {{"leader", std::nullopt}});
    client.await_erased("leader", revision, Deadline::after(1h));
  }
  SECTION("when it is there anew") {
    other.change_if({}, {{"leader", std::nullopt}});
    make(0);
    client.await_erased("leader", revision, Deadline::after(1h));
  }
  SECTION("not before the deadline otherwise") {
    const auto begun = Clock::now();
    client.await_erased("leader", revision, Deadline::after(300ms));
    CHECK(Clock::now() - begun >= 300ms);
    CHECK(Clock::now() - begun < 5s);
    CHECK(client.get("leader"));
  }
  SECTION("or the call is cancelled") {
    std::optional<ErrorCode> code;
    std::thread waits([&] {
      code = code_of([&] { client.await_erased("leader", revision, Deadline::after(1h)); });
    });
    std::this_thread::sleep_for(100ms);
    client.cancel();
    waits.join();
    CHECK(code == ErrorCode::kAborted);
    CHECK(code_of([&] { client.get("leader"); }) == ErrorCode::kAborted);
  }
}

TEST_CASE("EtcdClient: an etcd that is away is said so, and found again", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  OneEtcd etcd;
  REQUIRE(EtcdClient(etcd.options()).change_if({}, {{"row", "kept"}}).held);
  EtcdClient client(hasty(etcd.cluster.endpoints()));
  code_of([&] { client.get("row"); });  // makes a connection, if it succeeds
  test::EtcdProcess& member = *etcd.cluster.members.front();
  const std::string place = to_string(member.endpoint());
  std::string what;

  member.kill();
  const std::string refused = "etcd: " + place + ": connection refused";
  CHECK(unavailable_of([&] { client.get("row"); }, refused) == refused);

  member.start();
  await_ready(etcd.cluster.endpoints());
  CHECK(EtcdClient(etcd.options()).get("row")->value == "kept");

  code_of([&] { client.get("row"); });
  member.pause();
  const auto begun = Clock::now();
  CHECK(code_of([&] { client.get("row"); }, &what) == ErrorCode::kUnavailable);
  CHECK(Clock::now() - begun < 10s);
  CHECK_THAT(what, test::Contains("etcd: " + place + ": no answer in "));
  member.go_on();
  CHECK(EtcdClient(etcd.options()).get("row")->value == "kept");
}

TEST_CASE("EtcdClient: one of three members may be killed, two may not", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  test::EtcdCluster cluster(3);
  EtcdOptions options = patient(cluster.endpoints());
  options.request_limit = 1s;
  EtcdClient client(options);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(client.change_if({}, {{"row", concat(i)}}).held);
    cluster.members[static_cast<std::size_t>(i)]->kill();
    REQUIRE(client.change_if({}, {{"row", concat(i, " again")}}).held);
    CHECK(client.get("row")->value == concat(i, " again"));
    cluster.members[static_cast<std::size_t>(i)]->start();
    await_ready({cluster.endpoints()[static_cast<std::size_t>(i)]});
  }
  cluster.members[0]->kill();
  cluster.members[1]->kill();
  EtcdClient other(hasty(cluster.endpoints()));
  std::string what;
  CHECK(code_of(
            [&] {
              other.change_if({}, {{"row", "minority"}});
            },
            &what) == ErrorCode::kUnavailable);
  CHECK(code_of([&] { other.get("row"); }) == ErrorCode::kUnavailable);
  for (const Endpoint& endpoint : cluster.endpoints()) {
    CHECK(contains(what, to_string(endpoint)));
  }
}

TEST_CASE("EtcdClient: TLS, with a certificate of its own, not without, nor with others'",
          "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  const test::TempDirectory directory;
  const security::Days days(2);
  const security::Certificate authority = security::make_authority("test", days);
  const security::Certificate stranger = security::make_authority("stranger", days);
  const auto keep = [&](const std::string& name, const security::Certificate& made) {
    test::write_secret_file(directory.path(name + ".crt"), made.cert);
    test::write_secret_file(directory.path(name + ".key"), made.key);
  };
  keep("ca", authority);
  keep("stranger", stranger);
  keep("server", security::issue(authority, "etcd", {"127.0.0.1"}, days));
  keep("client", security::issue(authority, "ddprund", {}, days));
  const auto file = [&](const char* name) { return directory.path(name); };
  test::EtcdCluster cluster(1, {file("server.crt"), file("server.key"), file("ca.crt")});
  EtcdOptions options = patient(cluster.endpoints());
  options.tls =
      security::make_client_context({file("client.crt"), file("client.key"), file("ca.crt")});
  EtcdClient client(options);
  const TxnResult made = client.change_if({{"row", 0}}, {{"row", std::string(1 << 20, 'x')}});
  REQUIRE(made.held);
  CHECK(client.get("row")->value.size() == 1 << 20);
  std::thread erases([&] {
    EtcdClient other(options);
    other.change_if({}, {{"row", std::nullopt}});
  });
  client.await_erased("row", made.revision, Deadline::after(20s));
  erases.join();
  CHECK(client.get("row") == std::nullopt);

  std::string what;
  EtcdOptions others = hasty(cluster.endpoints());
  const auto refused = [&] { EtcdClient(others).get("row"); };
  CHECK(code_of(refused, &what).has_value());
  CHECK_THAT(what, test::Contains("an etcd that wants TLS does that (--ha-ca)"));
  others.tls = security::make_client_context({{}, {}, file("ca.crt")});
  CHECK_THAT(unavailable_of(refused, "certificate"), test::Contains("certificate"));
  others.tls = security::make_client_context({{}, {}, file("stranger.crt")});
  const std::string stranger_s = "its certificate is of an authority that --tls-ca does not have";
  CHECK_THAT(unavailable_of(refused, stranger_s), test::Contains(stranger_s));
}

}  // namespace
}  // namespace ddprun::ha::testing
