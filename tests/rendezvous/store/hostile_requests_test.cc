// SPDX-License-Identifier: Apache-2.0
// Requests that cost their sender little, and once cost the store much.
#include <functional>
#include <set>

#include "bench/store/colliding_keys.h"
#include "common/keyed_hash.h"
#include "rendezvous/store/rate.h"
#include "rendezvous/store/store_state.h"
#include "tests/rendezvous/store/all_requests.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::store;
using namespace ddprun::store::testing;
using ddprun::test::Contains;

namespace {

std::vector<std::string> numbered_keys(std::size_t count) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back("/" + std::to_string(i));
  return keys;
}

Request about(Opcode opcode, const std::vector<std::string>& keys) {
  return request_of_keys(opcode, {keys.begin(), keys.end()});
}

}  // namespace

TEST_CASE("hostile requests: keys that collide in std::hash don't collide in the store's tables") {
  const std::vector<std::string> keys = bench::colliding_keys(1000);
  std::set<std::size_t> of_std, of_ours;
  for (const std::string& key : keys) {
    of_std.insert(std::hash<std::string>()(key));
    of_ours.insert(KeyedHash()(key));
  }
  CHECK(of_std.size() == 1);
  CHECK(of_ours.size() == keys.size());
}

// A WAIT was once searched for its next missing key. That took as much work as it has keys, each
// time.
TEST_CASE("hostile requests: a write takes no more work where WAITs of its key have many keys") {
  StoreState state;
  std::vector<std::string> keys = numbered_keys(100'000);
  Request all = about(Opcode::kMultiSet, keys);
  all.values.assign(keys.size(), "v");
  state.step(1, all);
  keys.front() = "/first";
  keys.back() = "/last";
  for (ConnectionId client = 2; client < 6; ++client)
    state.step(client, about(Opcode::kWait, keys));
  REQUIRE(state.num_waits() == 4);
  for (const char* key : {"/first", "/last"}) {
    CHECK(state.step(1, request_of(Opcode::kSet, key)).work < 20);
    CHECK(state.step(1, request_of(Opcode::kDeleteKey, key)).work < 20);
  }
  CHECK(state.num_waits() == 4);
}

TEST_CASE(
    "hostile requests: a write to a key that is there doesn't look at the WAITs that name it") {
  StoreState state;
  state.step(1, request_of_number(Opcode::kAdd, "/counter", 1));
  for (int i = 0; i < 1000; ++i) {
    state.step(2, request_of_keys(Opcode::kWait, {"/counter", "/never"}));
  }
  CHECK(state.step(1, request_of_number(Opcode::kAdd, "/counter", 1)).work < 10);
}

TEST_CASE("hostile requests: a WAIT that names a key many times waits for it once") {
  StoreState state;
  std::vector<std::string> keys(100'000, "/again");
  keys.emplace_back("/never");
  state.step(1, about(Opcode::kWait, keys));
  CHECK(state.total_bytes() < 1000);
  CHECK(state.step(2, request_of(Opcode::kSet, "/again")).work < 10);
  CHECK(state.num_waits() == 1);
  CHECK(state.step(2, request_of(Opcode::kSet, "/never")).replies.size() == 1);
  CHECK(state.num_waits() == 0);
}

TEST_CASE("hostile requests: a connection waits for so many keys in all") {
  StoreState state;
  const std::vector<std::string> keys = numbered_keys(100'000);
  CHECK(state.step(1, about(Opcode::kWait, keys)).close_reason.empty());
  CHECK(state.step(2, about(Opcode::kWait, keys)).close_reason.empty());
  CHECK_THAT(state.step(1, about(Opcode::kWait, keys)).close_reason,
             Contains("more than 131072 keys waited for"));
  CHECK(state.num_waits() == 2);
  state.step(1, request_of(Opcode::kCancelWait));
  CHECK(state.step(1, about(Opcode::kWait, keys)).close_reason.empty());
}

TEST_CASE("hostile requests: each key of a WAIT counts against the memory limit") {
  StoreState state(1 << 20);
  CHECK_THAT(state.step(1, about(Opcode::kWait, numbered_keys(10'000))).close_reason,
             Contains("the store is full"));
  CHECK(state.total_bytes() == 0);
  CHECK(state.step(1, about(Opcode::kWait, numbered_keys(5'000))).close_reason.empty());
  CHECK(state.total_bytes() > std::size_t{5'000} * 128);
  state.disconnect(1);
  CHECK(state.total_bytes() == 0);
}

TEST_CASE("hostile requests: a number far behind blanks or zeros is refused") {
  for (const char filler : {' ', '0'}) {
    StoreState state;
    const std::string near = std::string(200, filler) + "7";
    const std::string far = std::string(1 << 20, filler) + "7";
    state.step(1, request_of(Opcode::kSet, "/near", near));
    state.step(1, request_of(Opcode::kSet, "/far", far));
    CHECK(state.step(1, request_of_number(Opcode::kAdd, "/near", 1)).close_reason.empty());
    CHECK_THAT(state.step(1, request_of_number(Opcode::kAdd, "/far", 1)).close_reason,
               Contains("is not a number"));
  }
}

TEST_CASE("hostile requests: no value grows beyond what one request may write") {
  StoreState state;
  const std::string half(std::size_t{40} << 20, 'x');
  CHECK(state.step(1, request_of(Opcode::kAppend, "/k", half)).close_reason.empty());
  CHECK_THAT(state.step(1, request_of(Opcode::kAppend, "/k", half)).close_reason,
             Contains("the limit is 67108864"));
  CHECK(state.content_bytes() == half.size() + 2);
}

TEST_CASE("hostile requests: LIST_KEYS answers at most 4 MiB") {
  StoreState state;
  const std::vector<std::string> keys = numbered_keys(130'000);
  Request all = about(Opcode::kMultiSet, keys);
  all.values.assign(keys.size(), "");
  state.step(1, all);
  CHECK(state.step(1, request_of(Opcode::kListKeys)).close_reason.empty());
  const std::string long_name(8000, 'x');
  std::vector<std::string> more;
  for (int i = 0; i < 500; ++i) more.push_back(long_name + std::to_string(i));
  for (const std::string& key : more) state.step(1, request_of(Opcode::kSet, key));
  CHECK_THAT(state.step(1, request_of(Opcode::kListKeys)).close_reason,
             Contains("a reply at most 4194304"));
  CHECK(state.work_of(1, request_of(Opcode::kListKeys)) == 1);  // the request is refused at once
}

TEST_CASE("hostile requests: LIST_KEYS of long keys is a large request") {
  StoreState state;
  const std::string long_name(470, 'x');
  for (int i = 0; i < 8'000; ++i) {
    state.step(1, request_of(Opcode::kSet, long_name + std::to_string(i)));
  }
  CHECK(state.work_of(1, request_of(Opcode::kListKeys)) > kLargeWork);
}

TEST_CASE("hostile requests: the work of a request is known before it is done") {
  StoreState state;
  const std::vector<std::string> keys = numbered_keys(1000);
  const std::string large(4 << 20, 'x');
  const auto work = [&](const Request& request) {
    const std::size_t expected = state.work_of(1, request);
    CHECK(state.step(1, request).work >= expected);
    return expected;
  };
  CHECK(work(request_of(Opcode::kGet, "/k")) == 1);
  CHECK(work(about(Opcode::kCheck, keys)) > 1000);
  CHECK(work(about(Opcode::kMultiGet, keys)) > 1000);
  CHECK(work(about(Opcode::kWait, keys)) > 2000);
  CHECK(work(request_of(Opcode::kCancelWait)) > 1000);
  CHECK(work(request_of(Opcode::kSet, "/large", large)) > 1000);
  CHECK(work(compare_set_request("/large", large, "")) > 1000);
  for (int i = 2; i < 12; ++i) state.step(i, request_of_keys(Opcode::kWait, {"/k", "/never"}));
  for (const Opcode writes : {Opcode::kSet, Opcode::kDeleteKey}) {
    const Request request = request_of(writes, "/k");
    CHECK(state.num_waits_for(request) == 10);
    CHECK(state.step(1, request).work > 10);
  }
  Request all = about(Opcode::kMultiSet, keys);
  all.values.assign(keys.size(), "v");
  CHECK(work(all) > 1000);
  CHECK(work(request_of(Opcode::kListKeys)) > 1000);
  state.step(1, request_of(Opcode::kSet, "/large", large));
  const SharedValue held = state.step(1, request_of(Opcode::kGet, "/large")).replies.at(0).body;
  CHECK(work(request_of(Opcode::kAppend, "/large", "x")) > 1000);  // the value is copied
  CHECK(work(request_of(Opcode::kAppend, "/large", "x")) == 1);
}
