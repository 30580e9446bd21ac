// SPDX-License-Identifier: Apache-2.0
// Requests and answers as text. The answers are those of etcd 3.4.23.
#include "rendezvous/ha/etcd_codec.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::ha {
namespace {

using test::code_of;

TEST_CASE("etcd's codec: requests") {
  CHECK(range_request("leader") == R"({"key":"bGVhZGVy"})");
  CHECK(range_request("a", "b", 5, 7) ==
        R"({"key":"YQ==","range_end":"Yg==","limit":"5","revision":"7"})");
  CHECK(end_of_prefix("ab/") == "ab0");
  CHECK(end_of_prefix("a\xff\xff") == "b");
  const std::vector<Guard> guards{{"a", 3}, {"b", {}, 0}};
  CHECK(txn_request(guards, {{"k", "v", 9}, {"e", {}}, {"p/", {}, 0, true}}) ==
        R"({"compare":[{"key":"YQ==","target":"CREATE","result":"EQUAL","create_revision":"3"},)"
        R"({"key":"Yg==","target":"MOD","result":"EQUAL","mod_revision":"0"}],)"
        R"("success":[{"request_put":{"key":"aw==","value":"dg==","lease":"9"}},)"
        R"({"request_delete_range":{"key":"ZQ=="}},)"
        R"({"request_delete_range":{"key":"cC8=","range_end":"cDA="}}],)"
        R"("failure":[{"request_range":{"key":"YQ=="}},{"request_range":{"key":"Yg=="}}]})");
}

TEST_CASE("etcd's codec: answers") {
  const char* header =
      R"({"header":{"cluster_id":"32","member_id":"33","revision":"5","raft_term":"2"})";
  const RangeAnswer range = parse_range(
      header +
      std::string(R"(,"kvs":[{"key":"bGVhZGVy","create_revision":"2","mod_revision":"4",)"
                  R"("version":"1","value":"bGVhZGVy","lease":"77"}],"more":true,"count":"1"})"));
  CHECK(range.revision == 5);
  CHECK(range.more);
  CHECK(range.keys == std::vector<KeyValue>{{"leader", "leader", 2, 4, 77}});
  CHECK(parse_range(std::string(header) + "}").keys.empty());

  const TxnResult held = parse_txn(
      header +
          std::string(
              R"(,"succeeded":true,"responses":[{"response_put":{"header":{"revision":"5"}}}]})"),
      1);
  CHECK(held.held);
  CHECK(held.revision == 5);
  const TxnResult failed = parse_txn(
      header +
          std::string(
              R"(,"responses":[{"response_range":{"header":{"revision":"2"},"kvs":[{"key":"bGVhZGVy",)"
              R"("create_revision":"2","mod_revision":"2","version":"1","value":"bGVhZGVy"}]}},)"
              R"({"response_range":{"header":{"revision":"2"}}}]})"),
      2);
  CHECK_FALSE(failed.held);
  REQUIRE(failed.found.size() == 2);
  CHECK(failed.found[0]->value == "leader");
  CHECK(failed.found[1] == std::nullopt);

  CHECK(parse_grant(std::string(header) + R"(,"ID":"2324035560387789062","TTL":"2"})") ==
        2324035560387789062);
  CHECK(parse_keep_alive("{\"result\":" + std::string(header) + R"(,"ID":"1234","TTL":"2"}})"));
  CHECK_FALSE(parse_keep_alive("{\"result\":" + std::string(header) + R"(,"ID":"1234"}})"));
  CHECK_FALSE(parse_watch("{\"result\":" + std::string(header) + R"(,"created":true}})").erased);
  CHECK(parse_watch("{\"result\":" + std::string(header) +
                    R"(,"events":[{"type":"DELETE","kv":{"key":"bGVhZGVy","mod_revision":"3"}}]}})")
            .erased);
  CHECK(parse_watch(
            R"({"result":{"header":{"raft_term":"2"},"canceled":true,"compact_revision":"9"}})")
            .cancelled);
}

TEST_CASE("etcd's codec: refusals are told with etcd's own words") {
  const EtcdRefusal no_space = parse_refusal(
      R"({"error":"etcdserver: mvcc: database space exceeded","message":"etcdserver: mvcc: database space exceeded","code":8})");
  CHECK(no_space.what() == std::string("etcdserver: mvcc: database space exceeded"));
  CHECK_FALSE(no_space.is_passing());
  CHECK(parse_refusal(R"({"message":"etcdserver: no leader","code":14})").is_passing());
  CHECK(parse_refusal(R"({"message":"etcdserver: requested lease not found","code":5})")
            .is_not_found());
  CHECK_THROWS_AS(
      parse_keep_alive(
          R"({"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service Unavailable"}})"),
      EtcdRefusal);
}

TEST_CASE("etcd's codec: an answer that etcd never gives is a protocol error") {
  const auto refused = [](auto parse) { CHECK(code_of(parse) == ErrorCode::kProtocol); };
  for (const std::string& text : std::vector<std::string>{
           "", "x", "[]", "1", "{", "{}", R"({"header":7})", R"({"header":{"revision":"0"}})",
           R"({"header":{"revision":"-1"}})", R"({"header":{"revision":"1x"}})",
           R"({"header":{"revision":"99999999999999999999"}})",
           R"({"header":{"revision":true}})"}) {
    CAPTURE(text);
    refused([&] { parse_range(text); });
    refused([&] { parse_txn(text, 1); });
    refused([&] { parse_keep_alive(text); });
    refused([&] { parse_grant(text); });
    refused([&] { parse_done(text); });
  }
  const std::string header = R"({"header":{"revision":"5"},)";
  for (const char* rest :
       {R"("kvs":{}})", R"("kvs":[1]})", R"("kvs":[{}]})", R"("more":1})",
        R"("kvs":[{"key":"A","create_revision":"1","mod_revision":"1"}]})",
        R"("kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"1"}]})",
        R"("kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"2","value":5}]})"}) {
    CAPTURE(rest);
    refused([&] { parse_range(header + rest); });
  }
  refused([&] { parse_txn(header + R"("responses":[]})", 1); });
  refused([&] { parse_txn(header + R"("responses":[{"response_put":{}}]})", 1); });
  refused([&] { parse_txn(header + R"("succeeded":"yes"})", 1); });
  refused([] { parse_watch(R"({"result":{"events":7}})"); });
  refused([] { parse_refusal("Not Found\n"); });
  refused([] { parse_range(std::string(100'000, '[')); });
}

}  // namespace
}  // namespace ddprun::ha
