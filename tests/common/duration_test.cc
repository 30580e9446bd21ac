// SPDX-License-Identifier: Apache-2.0
#include "common/wall_time.h"

#include "tests/support/catch.h"

using namespace ddprun;
using namespace std::chrono_literals;

TEST_CASE("Duration: durations as people and Slurm write them") {
  CHECK(parse_duration("90") == 90s);
  CHECK(parse_duration("1.5s") == 1500ms);
  CHECK(parse_duration("15m") == 15min);
  CHECK(parse_duration("2h") == 2h);
  CHECK(parse_duration("1d") == 24h);
  CHECK(parse_duration("05:30") == 330s);
  CHECK(parse_duration("1:30:00") == 90min);
  CHECK(parse_duration("1-02:00:00") == 26h);
  CHECK(parse_duration("90:00") == 90min);
  CHECK(parse_duration("100:59:59.5") == 101h - 500ms);
  CHECK(parse_duration("9-23:59:59") == 240h - 1s);
  for (const char* text : {"",           "m",          "-5",         "1:2:3:4",    "1-2",
                           "1:",         ":",          "abc",        "5x",         "nan",
                           "inf",        "1e300",      "86400001",   "1001d",      "1 h",
                           "1-99:99:99", "1-24:00:00", "1-00:60:00", "0-00:00:60", "1:60:00",
                           "1:00:60",    "05:60"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_duration(text));
  }
}

TEST_CASE("Duration: a point in time is told in UTC") {
  CHECK(utc_text(WallTime()) == "1970-01-01T00:00:00Z");
  CHECK(utc_text(WallTime(1'763'781'307s)) == "2025-11-22T03:15:07Z");
}

TEST_CASE("Duration: seconds are rounded to tenths") {
  CHECK(seconds_in_tenths(1'949ms) == 1.9);
  CHECK(seconds_in_tenths(1'951ms) == 2);
  CHECK(seconds_in_tenths(0ms) == 0);
}

TEST_CASE("Duration: milliseconds are shown with a tenth") {
  CHECK(milliseconds_text(12'345us) == "12.3 ms");
  CHECK(milliseconds_text(49us) == "0.0 ms");
  CHECK(milliseconds_text(999'950us) == "1000.0 ms");
}
