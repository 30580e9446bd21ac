// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/store_state.h"

#include <map>

#include "tests/rendezvous/store/all_requests.h"
#include "tests/support/catch.h"

using namespace ddprun::store;
using namespace ddprun::store::testing;
using ddprun::test::Contains;

namespace {

const std::string kStop(1, kStopWaiting);
const std::string kCanceled(1, kWaitCanceled);
const std::string kYes(1, kReady);
const std::string kNo(1, kNotReady);

std::string number(std::int64_t value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string vec(std::string_view bytes) {
  std::string out;
  append_vector(bytes, &out);
  return out;
}

// Clients 1, 2, … talk to one state. Each call returns the caller's reply. got(i) returns the bytes
// that reached client i since the last got(i).
class Clients {
 public:
  explicit Clients(std::size_t max_total_bytes = 1 << 20) : state(max_total_bytes) {}

  std::string call(ConnectionId from, const Request& request) {
    take(state.step(from, request));
    return got(from);
  }
  std::string set(ConnectionId from, std::string_view key, std::string_view value) {
    return call(from, request_of(Opcode::kSet, key, value));
  }
  std::string get(ConnectionId from, std::string_view key) {
    return call(from, request_of(Opcode::kGet, key));
  }
  std::string add(ConnectionId from, std::string_view key, std::int64_t delta) {
    return call(from, request_of_number(Opcode::kAdd, key, delta));
  }
  std::string wait(ConnectionId from, std::vector<std::string_view> keys) {
    return call(from, request_of_keys(Opcode::kWait, std::move(keys)));
  }
  std::string cancel(ConnectionId from) { return call(from, request_of(Opcode::kCancelWait)); }
  std::string barrier(ConnectionId from, std::string_view key, std::int64_t world_size) {
    return call(from, request_of_number(Opcode::kBarrier, key, world_size));
  }
  std::string erase(ConnectionId from, std::string_view key) {
    return call(from, request_of(Opcode::kDeleteKey, key));
  }
  std::string cas(ConnectionId from, std::string_view key, std::string_view expected,
                  std::string_view desired) {
    return call(from, compare_set_request(key, expected, desired));
  }
  std::string push(ConnectionId from, std::string_view key, std::string_view value) {
    return call(from, request_of(Opcode::kQueuePush, key, value));
  }
  std::string pop(ConnectionId from, std::string_view key) {
    return call(from, request_of(Opcode::kQueuePop, key));
  }
  void disconnect(ConnectionId connection) { take(state.disconnect(connection)); }
  std::string got(ConnectionId connection) { return std::exchange(inbox_[connection], ""); }

  StoreState state;
  std::string close_reason;  // of the last call

 private:
  void take(const Outcome& outcome) {
    close_reason = outcome.close_reason;
    for (const Reply& reply : outcome.replies) {
      inbox_[reply.to] += reply.bytes;
      if (reply.body) inbox_[reply.to] += *reply.body;
    }
  }

  std::map<ConnectionId, std::string> inbox_;
};

}  // namespace

TEST_CASE("StoreState: values are set, read, overwritten, appended to and deleted") {
  Clients c;
  CHECK(c.set(1, "k", "v") == "");
  CHECK(c.get(2, "k") == vec("v"));
  c.set(1, "k", "");
  CHECK(c.get(2, "k") == vec(""));
  c.call(1, request_of(Opcode::kAppend, "k", "ab"));
  c.call(1, request_of(Opcode::kAppend, "k", "cd"));
  c.call(1, request_of(Opcode::kAppend, "new", "x"));
  CHECK(c.get(2, "k") == vec("abcd"));
  CHECK(c.get(2, "new") == vec("x"));
  CHECK(c.call(1, request_of(Opcode::kGetNumKeys)) == number(2));
  CHECK(c.erase(1, "k") == number(1));
  CHECK(c.erase(1, "k") == number(0));
  CHECK(c.get(2, "k") == vec(""));
  CHECK(c.call(1, request_of(Opcode::kGetNumKeys)) == number(1));
}

TEST_CASE("StoreState: a large value is shared, and a reply keeps the value it was made with") {
  Clients c;
  const std::string large(100'000, 'x');
  c.set(1, "k", large);
  const Outcome& outcome = c.state.step(2, request_of(Opcode::kGet, "k"));
  REQUIRE(outcome.replies.size() == 1);
  const Reply reply = outcome.replies[0];
  CHECK(reply.bytes == number(100'000));
  c.call(1, request_of(Opcode::kAppend, "k", "y"));
  CHECK(*reply.body == large);
  CHECK(c.get(2, "k") == vec(large + "y"));
}

TEST_CASE("StoreState: COMPARE_SET has c10d's four outcomes") {
  Clients c;
  // The key is absent, a value was expected: not created.
  CHECK(c.cas(1, "k", "x", "new") == vec("x"));
  CHECK(c.get(1, "k") == vec(""));
  CHECK(c.state.num_keys() == 0);
  CHECK(c.cas(1, "k", "", "new") == vec("new"));   // the key is absent, none was expected: created
  CHECK(c.cas(1, "k", "old", "z") == vec("new"));  // the values differ
  CHECK(c.cas(1, "k", "new", "z") == vec("z"));    // the values are equal
  c.set(1, "k", "");
  CHECK(c.cas(1, "k", "", "again") == vec("again"));  // an empty value equals an expected empty one
}

TEST_CASE("StoreState: ADD reads as std::stoll does, and closes on a text that is no number") {
  Clients c;
  CHECK(c.add(1, "n", 5) == number(5));
  CHECK(c.add(2, "n", -7) == number(-2));
  CHECK(c.get(1, "n") == vec("-2"));
  for (const auto& [text, sum] : std::map<std::string, std::int64_t>{
           {" \t\n12", 13}, {"+12", 13}, {"-12", -11}, {"12abc", 13}, {"007", 8}, {"0x10", 1}}) {
    CAPTURE(text);
    c.set(1, "n", text);
    CHECK(c.add(1, "n", 1) == number(sum));
  }
  for (const char* text : {"", "abc", "+", "-", "+-1", "- 1", "9223372036854775808"}) {
    CAPTURE(text);
    c.set(1, "n", text);
    CHECK(c.add(1, "n", 1) == "");
    CHECK_THAT(c.close_reason, Contains("not a number"));
    CHECK(c.get(1, "n") == vec(text));
  }
  c.set(1, "n", "9223372036854775807");
  CHECK(c.add(1, "n", 1) == number(std::numeric_limits<std::int64_t>::min()));
}

TEST_CASE("StoreState: CHECK and MULTI_GET take many keys, none and duplicates") {
  Clients c;
  c.call(1, request_of_keys(Opcode::kMultiSet, {"a", "b", "a"}, {"1", "2", "3"}));
  CHECK(c.call(1, request_of_keys(Opcode::kCheck, {})) == kYes);
  CHECK(c.call(1, request_of_keys(Opcode::kCheck, {"a", "b", "a"})) == kYes);
  CHECK(c.call(1, request_of_keys(Opcode::kCheck, {"a", "z"})) == kNo);
  CHECK(c.call(1, request_of_keys(Opcode::kMultiGet, {"a", "z", "b"})) ==
        vec("3") + vec("") + vec("2"));
  CHECK(c.call(1, request_of_keys(Opcode::kMultiGet, {})) == "");
  CHECK(c.state.num_keys() == 2);
}

TEST_CASE("StoreState: LIST_KEYS lists keys, not queues") {
  Clients c;
  c.set(1, "init/", "1");
  c.push(1, "q", "x");
  CHECK(c.call(1, request_of(Opcode::kListKeys)) == number(1) + vec("init/"));
}

TEST_CASE("StoreState: every kind of write ends a WAIT on the key") {
  for (const Request& write :
       {request_of(Opcode::kSet, "k", "v"), request_of(Opcode::kAppend, "k", "v"),
        request_of_number(Opcode::kAdd, "k", 1), compare_set_request("k", "", "v"),
        request_of_keys(Opcode::kMultiSet, {"j", "k"}, {"1", "2"}),
        request_of(Opcode::kQueuePush, "k", "v"), request_of_number(Opcode::kBarrier, "k", 5)}) {
    CAPTURE(opcode_name(write.opcode));
    Clients c;
    CHECK(c.wait(2, {"k"}) == "");
    c.call(1, write);
    CHECK(c.got(2) == kStop);
    CHECK(c.wait(2, {"k"}) == kStop);
    CHECK(c.cancel(2) == kCanceled);
  }
}

TEST_CASE("StoreState: SET releases every waiter on the key") {
  Clients c;
  for (ConnectionId i = 2; i < 100; ++i) c.wait(i, {"k"});
  c.set(1, "other", "v");
  CHECK(c.got(50) == "");
  c.set(1, "k", "v");
  for (ConnectionId i = 2; i < 100; ++i) CHECK(c.got(i) == kStop);
  CHECK(c.state.num_waits() == 0);
}

TEST_CASE("StoreState: WAIT is level-triggered: all keys at one moment") {
  Clients c;
  CHECK(c.wait(2, {"a", "b"}) == "");
  c.set(1, "a", "1");
  c.erase(1, "a");
  c.set(1, "b", "1");
  CHECK(c.got(2) == "");
  c.set(1, "a", "1");
  CHECK(c.got(2) == kStop);
  c.set(1, "a", "2");
  CHECK(c.got(2) == "");
}

TEST_CASE("StoreState: WAIT on no keys, on duplicates, on keys in any order of arrival") {
  Clients c;
  CHECK(c.wait(2, {}) == kStop);
  CHECK(c.wait(2, {"x", "x"}) == "");
  c.set(1, "x", "");
  CHECK(c.got(2) == kStop);
  std::vector<std::string_view> order = {"a", "b", "c", "d"};
  do {
    Clients fresh;
    CHECK(fresh.wait(2, {"c", "a", "d", "b"}) == "");
    for (std::string_view key : order) {
      CHECK(fresh.got(2) == "");
      fresh.set(1, key, "v");
    }
    CHECK(fresh.got(2) == kStop);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("StoreState: several WAITs of one connection are independent") {
  Clients c;
  c.wait(2, {"a"});
  c.wait(2, {"a", "b"});
  c.wait(2, {"c"});
  CHECK(c.add(2, "mine", 1) == number(1));  // other requests go on
  c.set(1, "a", "");
  CHECK(c.got(2) == kStop);
  c.set(1, "b", "");
  CHECK(c.got(2) == kStop);
  CHECK(c.cancel(2) == kCanceled);
  c.set(1, "c", "");
  CHECK(c.got(2) == "");
}

TEST_CASE("StoreState: a connection that waits for what it sets itself hears the end first") {
  Clients c;
  c.wait(1, {"n"});
  CHECK(c.add(1, "n", 3) == kStop + number(3));
}

TEST_CASE("StoreState: a failed COMPARE_SET of an absent key wakes nobody") {
  Clients c;
  c.wait(2, {"k"});
  c.cas(1, "k", "x", "y");
  CHECK(c.got(2) == "");
}

TEST_CASE("StoreState: a connection that has gone hears no more, its number may be used again") {
  Clients c;
  c.wait(2, {"k"});
  c.barrier(2, "b", 2);
  c.disconnect(2);
  CHECK(c.state.num_waits() == 0);
  // 128 bytes are the barrier's counter.
  CHECK(c.state.total_bytes() == c.state.content_bytes() + 128);
  c.set(1, "k", "");
  CHECK(c.got(2) == "");
}

TEST_CASE("StoreState: too many WAITs at once close their connection") {
  Clients c;
  for (int i = 0; i < 16; ++i) c.wait(2, {"k"});
  CHECK(c.close_reason == "");
  c.wait(2, {"k"});
  CHECK_THAT(c.close_reason, Contains("more than 16 waits"));
  c.disconnect(2);
  CHECK(c.state.total_bytes() == 0);
}

TEST_CASE("StoreState: BARRIER ends for all when the last has come, and is one-shot") {
  Clients c;
  CHECK(c.barrier(1, "b", 3) == "");
  CHECK(c.barrier(2, "b", 3) == "");
  CHECK(c.get(9, "b") == vec("2"));
  CHECK(c.barrier(3, "b", 3) == kStop);
  CHECK(c.got(1) == kStop);
  CHECK(c.got(2) == kStop);
  CHECK(c.barrier(4, "b", 3) == kStop);  // the barrier was not reset
  CHECK(c.get(9, "b") == vec("4"));
}

TEST_CASE("StoreState: a cancelled BARRIER has still arrived, another write ends barriers") {
  Clients c;
  c.barrier(1, "b", 2);
  CHECK(c.cancel(1) == kCanceled);
  CHECK(c.barrier(2, "b", 2) == kStop);
  CHECK(c.got(1) == "");

  c.barrier(1, "w", 2);
  c.set(3, "w", "anything");
  CHECK(c.got(1) == kStop);
  c.barrier(2, "w", 2);
  CHECK_THAT(c.close_reason, Contains("not a number"));
}

TEST_CASE("StoreState: queues are first in, first out, in a name space of their own") {
  Clients c;
  c.set(1, "q", "value");
  c.push(1, "q", "a");
  c.push(1, "q", "b");
  CHECK(c.call(1, request_of(Opcode::kQueueLen, "q")) == number(2));
  CHECK(c.get(1, "q") == vec("value"));
  CHECK(c.erase(1, "q") == number(1));
  CHECK(c.call(1, request_of(Opcode::kGetNumKeys)) == number(0));
  CHECK(c.call(1, request_of_keys(Opcode::kCheck, {"q"})) == kYes);
  CHECK(c.pop(2, "q") == number(2) + vec("a"));
  CHECK(c.pop(2, "q") == number(1) + vec("b"));
  CHECK(c.pop(2, "q") == number(0));
  CHECK(c.call(1, request_of(Opcode::kQueueLen, "q")) == number(0));
  CHECK(c.call(1, request_of_keys(Opcode::kCheck, {"q"})) == kNo);
  CHECK(c.state.total_bytes() == 0);
}

TEST_CASE("StoreState: a pushed element ends one WAIT, the oldest") {
  Clients c;
  for (ConnectionId i : {2, 3, 4}) c.wait(i, {"q"});
  c.push(1, "q", "a");
  CHECK(c.got(2) == kStop);
  CHECK(c.got(3) == "");
  c.push(1, "q", "b");
  CHECK(c.got(3) == kStop);
  CHECK(c.pop(2, "q") == number(2) + vec("a"));
  CHECK(c.pop(3, "q") == number(1) + vec("b"));
  CHECK(c.got(4) == "");
}

TEST_CASE("StoreState: an element that the woken client doesn't take wakes the next") {
  SECTION("it does something else") {
    Clients c;
    c.wait(2, {"q"});
    c.wait(3, {"q"});
    c.push(1, "q", "a");
    c.got(2);
    c.call(2, ping_request(1));
    CHECK(c.got(3) == kStop);
  }
  SECTION("it goes away") {
    Clients c;
    c.wait(2, {"q"});
    c.wait(3, {"q"});
    c.push(1, "q", "a");
    c.disconnect(2);
    CHECK(c.got(3) == kStop);
  }
}

TEST_CASE("StoreState: WAIT on a queue and a key ends when both are there") {
  Clients c;
  c.push(1, "q", "a");
  c.wait(2, {"q", "k"});
  c.set(1, "k", "");
  CHECK(c.got(2) == kStop);
  c.wait(3, {"p", "k2"});
  c.push(1, "p", "a");
  c.pop(1, "p");
  c.set(1, "k2", "");
  CHECK(c.got(3) == "");
  c.push(1, "p", "b");
  CHECK(c.got(3) == kStop);
}

TEST_CASE("StoreState: an old WAIT on a queue can't end a later one") {
  Clients c;
  c.wait(2, {"q"});
  c.push(1, "q", "a");
  CHECK(c.got(2) == kStop);
  c.pop(2, "q");
  c.wait(2, {"k"});
  c.push(1, "q", "b");
  CHECK(c.got(2) == "");
}

TEST_CASE("StoreState: a write beyond the memory cap changes nothing and closes its sender") {
  for (const Request& write :
       {request_of(Opcode::kSet, "new", "0123456789"),
        request_of(Opcode::kAppend, "k", "0123456789"),
        request_of(Opcode::kQueuePush, "new", "0123456789"),
        compare_set_request("k", std::string_view("01234567890123456789"),
                            "0123456789012345678901234"),
        request_of_keys(Opcode::kMultiSet, {"k", "new"}, {"x", "y"}),
        request_of_keys(Opcode::kWait, {"nowhere"}), request_of_number(Opcode::kAdd, "new", 1),
        request_of_number(Opcode::kBarrier, "new", 1)}) {
    CAPTURE(opcode_name(write.opcode));
    Clients c(128 + 1 + 20 + 4);
    c.set(1, "k", "01234567890123456789");
    REQUIRE(c.close_reason == "");
    const std::size_t before = c.state.total_bytes();
    c.call(2, write);
    CHECK_THAT(c.close_reason, Contains("the store is full") && Contains("limit is 153"));
    CHECK(c.state.total_bytes() == before);
    CHECK(c.get(1, "k") == vec("01234567890123456789"));
    c.set(1, "k", "shorter");  // there is room again
    CHECK(c.close_reason == "");
  }
}

TEST_CASE("StoreState: a value that only a reply still holds counts against the cap") {
  Clients c(100'000);
  const auto held = [&](std::string_view key) {  // holds a value for a client that doesn't read
    return c.state.step(2, request_of(Opcode::kGet, key)).replies.at(0);
  };
  const std::string large(30'000, 'x');
  {
    c.set(1, "k", large);
    const Reply first = held("k");
    c.set(1, "k", large);
    const Reply second = held("k");
    c.erase(1, "k");
    c.push(1, "q", large);
    CHECK(c.close_reason == "");
    const Reply third = c.state.step(2, request_of(Opcode::kQueuePop, "q")).replies.at(0);
    CHECK(c.state.content_bytes() == 0);
    CHECK(c.state.total_bytes() == 90'000);
    c.set(1, "k", large);
    CHECK_THAT(c.close_reason, Contains("the store is full"));
    c.set(1, "k", std::string(5'000, 'y'));
    const Reply fourth = held("k");
    // A reply holds the value, so this makes a copy.
    c.call(1, request_of(Opcode::kAppend, "k", "y"));
    CHECK_THAT(c.close_reason, Contains("the store is full"));
  }
  c.erase(1, "k");
  CHECK(c.state.total_bytes() == 0);
}

TEST_CASE(
    "StoreState: deleting all keys leaves nothing accounted, whatever was stored and waited for") {
  Clients c;
  c.set(1, "a", "12345");
  c.set(1, "a", "1");
  c.call(1, request_of(Opcode::kAppend, "a", "23"));
  c.add(1, "a", 1000);
  c.cas(1, "a", "1123", "x");
  c.call(1, request_of_keys(Opcode::kMultiSet, {"b", "a"}, {"1", "22"}));
  c.barrier(3, "c", 2);
  c.wait(2, {"a", "d", "e"});
  c.set(1, "d", "");
  for (std::string_view key : {"a", "b", "c", "d"}) CHECK(c.erase(1, key) == number(1));
  c.disconnect(2);
  c.disconnect(3);
  CHECK(c.state.total_bytes() == 0);
  CHECK(c.state.num_keys() == 0);
}
