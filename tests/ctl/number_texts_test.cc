// SPDX-License-Identifier: Apache-2.0
#include "ctl/number_texts.h"

#include <cmath>

#include "tests/support/catch.h"

namespace ddprun::ctl {
namespace {

TEST_CASE("Number texts: whole numbers in groups of three, and how many of what") {
  CHECK(whole_text(999) == "999");
  CHECK(whole_text(1'234'567) == "1,234,567");
  CHECK(whole_text(-1'000) == "-1,000");
  CHECK(count_text(1, "rank") == "1 rank");
  CHECK(count_text(1'000, "rank") == "1,000 ranks");
}

TEST_CASE("Number texts: a number has as many digits as say something") {
  CHECK(number_text(0) == "0");
  CHECK(number_text(2.314) == "2.31");
  CHECK(number_text(2.5) == "2.50");
  CHECK(number_text(123.4) == "123");
  CHECK(number_text(999.6) == "1,000");
  CHECK(number_text(-1'234) == "-1,234");
  CHECK(number_text(1'234'567) == "1,234,567");
  CHECK(number_text(0.01234) == "0.0123");
  CHECK(number_text(0.0000123) == "1.23e-05");
  CHECK(number_text(1e300) == "1.00e+300");
}

TEST_CASE("Number texts: bytes in 1,024s, rates in 1,000s, none of them larger than its unit") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(1'536) == "1.5 KiB");
  CHECK(bytes_text(16.0 * (1 << 30)) == "16.0 GiB");
  CHECK(bytes_text(200.0 * (1 << 30)) == "200 GiB");
  CHECK(rate_text(999) == "999 B/s");
  CHECK(rate_text(1.23e9) == "1.2 GB/s");
  CHECK(rate_text(1e18) == "1000000 TB/s");
}

TEST_CASE("Number texts: a share is 0 or all of it only where it is") {
  CHECK(percent_text(0) == "0 %");
  CHECK(percent_text(0.012) == "1.2 %");
  CHECK(percent_text(0.431) == "43 %");
  CHECK(percent_text(0.973) == "97 %");
  CHECK(percent_text(0.9996) == "99.9 %");
  CHECK(percent_text(1) == "100 %");
  CHECK(percent_text(1.5) == "150 %");
}

TEST_CASE("Number texts: times in one unit or two, no 60 of the smaller one") {
  CHECK(seconds_text(0) == "0 s");
  CHECK(seconds_text(0.0000124) == "12 µs");
  CHECK(seconds_text(0.0412) == "41.2 ms");
  CHECK(seconds_text(0.213) == "213 ms");
  CHECK(seconds_text(41) == "41.0 s");
  CHECK(seconds_text(185) == "3 min 5 s");
  CHECK(seconds_text(179.6) == "3 min 0 s");
  CHECK(seconds_text(11'525) == "3 h 12 min");
  CHECK(seconds_text(3 * 3'600 - 1) == "3 h 0 min");
  CHECK(seconds_text(183'600) == "2 d 3 h");
  CHECK(seconds_text(1e300) == "1.00e+300 s");
}

TEST_CASE("Number texts: a value that is no number, and a time of less than none, is a dash") {
  for (const double value : {NAN, INFINITY, -INFINITY}) {
    CHECK(number_text(value) == "–");
    CHECK(bytes_text(value) == "–");
    CHECK(rate_text(value) == "–");
    CHECK(percent_text(value) == "–");
    CHECK(seconds_text(value) == "–");
  }
  CHECK(seconds_text(-1) == "–");
}

TEST_CASE("Number texts: the time since a job began is shown as a clock") {
  CHECK(clock_text(0) == "0:00:00");
  CHECK(clock_text(59.6) == "0:01:00");
  CHECK(clock_text(3'723) == "1:02:03");
  CHECK(clock_text(90'000) == "1 d 1:00");
  CHECK(clock_text(-5) == "0:00:00");
}

}  // namespace
}  // namespace ddprun::ctl
