// SPDX-License-Identifier: Apache-2.0
#include "agent/output/output_options.h"

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

StreamSpec parsed(std::string_view text) {
  StreamSpec spec;
  INFO(text);
  CHECK(parse_stream_spec(text, spec).empty());
  return spec;
}

TEST_CASE("stream spec: one value for all, or one for each local rank") {
  CHECK(parsed("0").empty());
  CHECK(parsed("1").of(7) == StreamSet{true, false});
  CHECK(parsed("2").of(0) == StreamSet{false, true});
  CHECK(parsed("3").of(0) == StreamSet{true, true});
  const StreamSpec some = parsed("0:1,12:3,3:0");
  CHECK(some.of(0) == StreamSet{true, false});
  CHECK(some.of(12) == StreamSet{true, true});
  CHECK(some.of(3) == StreamSet{});
  CHECK(some.of(1) == StreamSet{});
  CHECK_FALSE(some.empty());
  CHECK(parsed("0:0,1:0").empty());
}

TEST_CASE("stream spec: an invalid text is a problem that changes nothing") {
  for (const char* text : {"", "4", "-1", "00", "a", "0:", ":1", "0:4", "0:1,", ",0:1", "0:1,2",
                           "0:1;1:2", " 3", "99999999999:1", "1:2:3"}) {
    StreamSpec spec = parsed("1");
    INFO(text);
    CHECK(parse_stream_spec(text, spec).starts_with("wants 0, 1"));
    CHECK(spec.of(0) == StreamSet{true, false});
  }
}

TEST_CASE("rank set: numbers and ranges") {
  RankSet ranks;
  CHECK(parse_rank_set("0, 3,8-15", ranks).empty());
  for (const int rank : {0, 3, 8, 15}) CHECK(ranks.has(rank));
  for (const int rank : {1, 7, 16, -1}) CHECK_FALSE(ranks.has(rank));
  for (const char* text : {"a", "1,", ",", "3-1", "1-", "-1", "1 2", "0x1"}) {
    INFO(text);
    CHECK(parse_rank_set(text, ranks).starts_with("wants ranks"));
    CHECK(ranks.has(8));
  }
  CHECK(parse_rank_set("", ranks).empty());
  CHECK(ranks.empty());
}

TEST_CASE("line filters: two commas are one in a text") {
  CHECK(parse_line_filters("apple,orange") == std::vector<std::string>{"apple", "orange"});
  CHECK(parse_line_filters("a,,b,c") == std::vector<std::string>{"a,b", "c"});
  CHECK(parse_line_filters(",,") == std::vector<std::string>{","});
  CHECK(parse_line_filters("a,").size() == 1);
  CHECK(parse_line_filters("").empty());
}

TEST_CASE("size: powers of 1024") {
  std::uint64_t size = 7;
  CHECK(parse_size("65536", size).empty());
  CHECK(size == 65536);
  CHECK(parse_size("64K", size).empty());
  CHECK(size == 65536);
  CHECK(parse_size("100MB", size).empty());
  CHECK(size == 100 << 20);
  CHECK(parse_size("2giB", size).empty());
  CHECK(size == std::uint64_t{2} << 30);
  CHECK(parse_size("0", size).empty());
  for (const char* text :
       {"", "x", "-1", "1X", "1 M", "K", "1B", "99999999999999999999", "99999999T"}) {
    INFO(text);
    CHECK(parse_size(text, size).starts_with("is no size"));
  }
  CHECK(size == 0);
}

}  // namespace
}  // namespace ddprun::agent
