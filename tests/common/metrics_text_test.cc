// SPDX-License-Identifier: Apache-2.0
#include "common/metrics_text.h"

#include <cmath>
#include <limits>

#include "tests/support/catch.h"

namespace ddprun::metrics {
namespace {

std::string written(Format format) {
  TextWriter out(format);
  out.family("ddprun_jobs", Type::kGauge, "Jobs,\nby \\ \"phase\".");
  out.sample({{"phase", "forming"}, {"why", "a \"b\" \\ c\nd"}}, std::uint64_t{3});
  out.single("ddprun_rounds_begun_total", Type::kCounter, "Rounds.", std::uint64_t{1} << 63);
  out.family("ddprun_x_seconds", Type::kGauge, "X.");
  out.sample({{"k", "a"}}, 0.25);
  out.sample({{"k", "b"}}, std::numeric_limits<double>::infinity());
  out.sample({{"k", "c"}}, -std::numeric_limits<double>::infinity());
  out.sample({{"k", "d"}}, std::nan(""));
  return out.finish();
}

}  // namespace

TEST_CASE("metrics text: format 0.0.4, with what has to be escaped") {
  CHECK(written(Format::kText) ==
        "# HELP ddprun_jobs Jobs,\\nby \\\\ \"phase\".\n"
        "# TYPE ddprun_jobs gauge\n"
        "ddprun_jobs{phase=\"forming\",why=\"a \\\"b\\\" \\\\ c\\nd\"} 3\n"
        "# HELP ddprun_rounds_begun_total Rounds.\n"
        "# TYPE ddprun_rounds_begun_total counter\n"
        "ddprun_rounds_begun_total 9223372036854775808\n"
        "# HELP ddprun_x_seconds X.\n"
        "# TYPE ddprun_x_seconds gauge\n"
        "ddprun_x_seconds{k=\"a\"} 0.25\n"
        "ddprun_x_seconds{k=\"b\"} +Inf\n"
        "ddprun_x_seconds{k=\"c\"} -Inf\n"
        "ddprun_x_seconds{k=\"d\"} NaN\n");
}

TEST_CASE("metrics text: OpenMetrics names a counter without its suffix, and says its end") {
  const std::string text = written(Format::kOpenMetrics);
  CHECK_THAT(text, test::Contains("# TYPE ddprun_rounds_begun counter\n"
                                  "ddprun_rounds_begun_total 9223372036854775808\n"));
  CHECK_THAT(text, test::Contains("# HELP ddprun_jobs Jobs,\\nby \\\\ \\\"phase\\\".\n"));
  CHECK(text.ends_with("\n# EOF\n"));
}

TEST_CASE("metrics text: a histogram counts what is at most each bound") {
  Histogram waits({0.5, 1, 60});
  for (const double value : {0.1, 1.0, 1.5, 100.0}) waits.observe(value);
  const auto text_in = [&](Format format) {
    TextWriter out(format);
    out.histogram("ddprun_wait_seconds", "Waits.", waits);
    return out.finish();
  };
  CHECK(text_in(Format::kText) ==
        "# HELP ddprun_wait_seconds Waits.\n"
        "# TYPE ddprun_wait_seconds histogram\n"
        "ddprun_wait_seconds_bucket{le=\"0.5\"} 1\n"
        "ddprun_wait_seconds_bucket{le=\"1\"} 2\n"
        "ddprun_wait_seconds_bucket{le=\"60\"} 3\n"
        "ddprun_wait_seconds_bucket{le=\"+Inf\"} 4\n"
        "ddprun_wait_seconds_sum 102.6\n"
        "ddprun_wait_seconds_count 4\n");
  CHECK_THAT(text_in(Format::kOpenMetrics),
             test::Contains("{le=\"1.0\"} 2\n") && test::Contains("{le=\"0.5\"} 1\n"));
}

TEST_CASE("metrics text: Accept chooses, and one that is not understood means text 0.0.4") {
  const auto is_open = [](const char* accept) {
    return choose_format(accept) == Format::kOpenMetrics;
  };
  CHECK(
      is_open("application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
              "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"));
  CHECK(is_open("application/openmetrics-text"));
  CHECK_FALSE(is_open(""));
  CHECK_FALSE(is_open("*/*"));
  CHECK_FALSE(is_open("text/plain;version=0.0.4,application/openmetrics-text;q=0.5"));
  CHECK_FALSE(is_open("application/openmetrics-text;q=0"));
  CHECK_FALSE(is_open("application/openmetrics-text;q=much"));
  CHECK_FALSE(is_open(";;,,q=1"));
}

TEST_CASE("process metrics: they are this process's own, as the kernel has them") {
  const ProcessUse use = own_use();
  CHECK(use.cpu_seconds > 0);
  CHECK(use.virtual_bytes >= use.resident_bytes);
  CHECK(use.resident_bytes > 100'000);
  REQUIRE(use.num_open_fds);
  CHECK(*use.num_open_fds >= 1);
  CHECK(use.max_fds >= *use.num_open_fds);
  CHECK(use.start_timestamp_seconds > 1.6e9);
  CHECK(parse_boot_time("cpu 1 2\nctxt 5\nbtime 1732525200\nprocesses 7\n") == 1732525200);
  CHECK(parse_boot_time("cpu 1 2\n") == 0);
}

}  // namespace ddprun::metrics
