// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/request_parser.h"

#include <set>

#include "tests/rendezvous/store/all_requests.h"
#include "tests/support/catch.h"

using namespace ddprun::store;
using namespace ddprun::store::testing;
using ddprun::test::Contains;

namespace {

// Feeds segments as a server does: the rest of a request is kept and grows.
class Feed {
 public:
  explicit Feed(const RequestLimits& limits = RequestLimits()) : limits_(limits) {}

  // The requests that `segment` completes, each encoded again. It stops at a malformed one.
  std::string give(std::string_view segment) {
    pending_.append(segment);
    std::string complete;
    std::size_t used = 0;
    for (;;) {
      // A fresh copy, so that a sanitizer sees a view of the old one.
      const std::string bytes = pending_.substr(used);
      Request request;
      status_ = parser_.parse(bytes, &request);
      if (status_ != ParseStatus::kRequest) break;
      encode_request(request, &complete);
      ++num_requests_;
      used += parser_.request_bytes();
    }
    pending_.erase(0, used);
    return complete;
  }

  ParseStatus status() const { return status_; }
  std::size_t num_requests() const { return num_requests_; }
  const RequestParser& parser() const { return parser_; }

 private:
  RequestLimits limits_;
  RequestParser parser_{limits_};
  std::string pending_;
  ParseStatus status_ = ParseStatus::kNeedMore;
  std::size_t num_requests_ = 0;
};

std::string length(std::uint64_t value) {
  std::string bytes;
  append_u64(value, &bytes);
  return bytes;
}

// The reason for which the stream "handshake, then `bytes`" is refused.
std::string refusal(const std::string& bytes, const RequestLimits& limits = RequestLimits()) {
  Feed feed(limits);
  feed.give(encoded({validate_request()}));
  feed.give(bytes);
  CHECK(feed.status() == ParseStatus::kMalformed);
  return feed.parser().error();
}

}  // namespace

TEST_CASE("RequestParser: the list of all requests has all operations") {
  std::set<Opcode> seen;
  for (const Request& request : all_requests()) seen.insert(request.opcode);
  CHECK(seen.size() == kNumOpcodes);
}

TEST_CASE("RequestParser: the bytes that PyTorch's client sends") {
  const std::string bytes(
      "\x00\xce\xf7\x85\x3c"
      "\x01\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0v",
      5 + 20);
  CHECK(encoded({validate_request(), request_of(Opcode::kSet, "/k", "v")}) == bytes);
  Feed feed;
  CHECK(feed.give(bytes) == bytes);
  CHECK(feed.num_requests() == 2);
}

TEST_CASE("RequestParser: requests come out as they went in") {
  const std::vector<Request> requests = all_requests();
  const std::string bytes = encoded(requests);
  RequestLimits limits;
  RequestParser parser(limits);
  std::string_view rest = bytes;
  for (const Request& expected : requests) {
    Request request;
    REQUIRE(parser.parse(rest, &request) == ParseStatus::kRequest);
    CHECK(request == expected);
    rest.remove_prefix(parser.request_bytes());
  }
  CHECK(rest.empty());
}

TEST_CASE("RequestParser: a stream of all operations, split anywhere, is the same stream") {
  const std::string bytes = encoded(all_requests());
  for (std::size_t split = 0; split <= bytes.size(); ++split) {
    CAPTURE(split);
    Feed feed;
    std::string out = feed.give(bytes.substr(0, split));
    out += feed.give(bytes.substr(split));
    CHECK(out == bytes);
  }
}

TEST_CASE("RequestParser: a stream in single bytes is the same stream, the handshake included") {
  const std::string bytes = encoded(all_requests());
  Feed feed;
  std::string out;
  for (char byte : bytes) out += feed.give({&byte, 1});
  CHECK(out == bytes);
  CHECK(feed.num_requests() == all_requests().size());
}

TEST_CASE("RequestParser: the handshake comes first, once, with the right magic") {
  for (const Request& request : all_requests()) {
    if (request.opcode == Opcode::kValidate) continue;
    Feed feed;
    feed.give(encoded({request}));
    CHECK(feed.status() == ParseStatus::kMalformed);
  }
  CHECK_THAT(refusal(encoded({validate_request()})), Contains("second handshake"));

  // The stream is refused at the first wrong byte.
  Feed http;
  http.give("G");
  CHECK(http.status() == ParseStatus::kMalformed);
  Feed magic;
  magic.give(std::string("\0\xce\xf7", 3));
  CHECK(magic.status() == ParseStatus::kNeedMore);
  magic.give("x");
  CHECK(magic.status() == ParseStatus::kMalformed);
  CHECK_THAT(magic.parser().error(), Contains("magic"));
}

TEST_CASE("RequestParser: unknown operations are refused at their first byte") {
  for (int opcode = kNumOpcodes; opcode < 256; ++opcode) {
    CHECK_THAT(refusal(std::string(1, static_cast<char>(opcode))),
               Contains("unknown operation " + std::to_string(opcode)));
  }
}

TEST_CASE("RequestParser: a length beyond its limit is refused before its bytes arrive") {
  RequestLimits limits;
  limits.max_key_bytes = 10;
  limits.max_value_bytes = 20;
  limits.max_keys_per_request = 3;
  CHECK_THAT(refusal("\x01" + length(11), limits), Contains("SET with a key of 11 bytes"));
  CHECK_THAT(refusal("\x01" + length(1) + "k" + length(21), limits), Contains("the limit is 20"));
  CHECK_THAT(refusal("\x06" + length(4), limits), Contains("WAIT of 4 keys"));
  for (char list : {'\x05', '\x06', '\x0a', '\x0b'}) {
    refusal(std::string(1, list) + length(~std::uint64_t{0}), limits);  // MULTI_SET's −1
  }
  refusal("\x03" + length(~std::uint64_t{0}), limits);
  refusal("\x0b" + length(2) + length(1) + "k" + length(21), limits);

  // Exactly the limit is fine.
  Feed feed(limits);
  const std::string value(20, 'v');
  const std::string bytes =
      encoded({validate_request(), request_of(Opcode::kSet, "0123456789", value),
               request_of_keys(Opcode::kCheck, {"a", "b", "c"})});
  CHECK(feed.give(bytes) == bytes);
}

TEST_CASE("RequestParser: the bytes that a partial request still needs are known") {
  Feed feed;
  feed.give(encoded({validate_request()}));
  feed.give("\x01" + length(2));
  CHECK(feed.parser().needed_bytes() == 1 + 8 + 2);
  feed.give("/k" + length(1000));
  CHECK(feed.parser().needed_bytes() == 1 + 8 + 2 + 8 + 1000);
  feed.give(std::string(1000, 'v'));
  CHECK(feed.num_requests() == 2);
}

TEST_CASE("RequestParser: a huge request in small segments costs linear work") {
  constexpr int kNumKeys = 20'000;
  std::vector<std::string> keys;
  for (int i = 0; i < kNumKeys; ++i) keys.push_back("/key" + std::to_string(i));
  const std::string bytes =
      encoded({validate_request(), request_of_keys(Opcode::kCheck, {keys.begin(), keys.end()})});
  RequestLimits limits;
  RequestParser parser(limits);
  Request request;
  REQUIRE(parser.parse(bytes, &request) == ParseStatus::kRequest);
  const std::string_view check = std::string_view(bytes).substr(parser.request_bytes());
  // This makes 30,000 calls. A parser that starts anew each time would look at 300 million keys.
  for (std::size_t size = 1; size < check.size(); size += 10) {
    REQUIRE(parser.parse(check.substr(0, size), &request) == ParseStatus::kNeedMore);
  }
  REQUIRE(parser.parse(check, &request) == ParseStatus::kRequest);
  CHECK(request.keys.size() == kNumKeys);
}
