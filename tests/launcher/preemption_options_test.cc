// SPDX-License-Identifier: Apache-2.0
#include "launcher/preemption_options.h"

#include <csignal>

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::test::Contains;

namespace {

PreemptionFlags flags_of(const std::string& signals, const std::string& time_limit = "",
                         const std::string& notice = "60") {
  return {signals, time_limit, notice};
}

std::string problem(const PreemptionFlags& flags) {
  std::vector<std::string> problems;
  parse_preemption(flags, problems);
  return problems.empty() ? "" : problems.front();
}

}  // namespace

TEST_CASE("preemption: durations as people and Slurm write them") {
  CHECK(parse_duration("90") == 90s);
  CHECK(parse_duration("1.5s") == 1500ms);
  CHECK(parse_duration("15m") == 15min);
  CHECK(parse_duration("2h") == 2h);
  CHECK(parse_duration("1d") == 24h);
  CHECK(parse_duration("05:30") == 330s);
  CHECK(parse_duration("1:30:00") == 90min);
  CHECK(parse_duration("1-02:00:00") == 26h);
  for (const char* text : {"", "m", "-5", "1:2:3:4", "1-2", "1:", ":", "abc", "5x", "nan", "inf",
                           "1e300", "86400001", "1001d", "1 h"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_duration(text));
  }
}

TEST_CASE("preemption: signals, notice and time limit, or what is wrong with them") {
  std::vector<std::string> problems;
  const PreemptionOptions options =
      parse_preemption(flags_of("USR1,SIGTERM,12", "90m", "2m"), problems);
  CHECK(problems.empty());
  CHECK(options.signals == std::vector<int>{SIGUSR1, SIGTERM, SIGUSR2});
  CHECK(options.time_limit == 90min);
  CHECK(options.notice == 2min);
  CHECK(parse_preemption({}, problems).signals == std::vector<int>{SIGUSR1});
  CHECK(parse_preemption(flags_of("none"), problems).signals.empty());
  CHECK_THAT(problem(flags_of("USR1,FOO")), Contains("--preemption-signals: \"FOO\""));
  CHECK_THAT(problem(flags_of("SIGKILL")), Contains("SIGKILL"));
  CHECK_THAT(problem(flags_of("none", "", "0")), Contains("--preemption-notice=0"));
  CHECK_THAT(problem(flags_of("none", "soon")), Contains("--time-limit=soon"));
  CHECK_THAT(problem(flags_of("none", "0")), Contains("--time-limit=0"));
  CHECK_THAT(problem(flags_of("none", "30")), Contains("longer than --preemption-notice"));
}

TEST_CASE("preemption: --time-limit=auto is Slurm's end of the job") {
  std::vector<std::string> problems;
  PreemptionOptions options = parse_preemption(flags_of("none", "auto"), problems);
  CHECK_FALSE(options.time_limit);
  CHECK_THAT(resolve_time_limit(options, {}, 1000), Contains("SLURM_JOB_END_TIME is not set"));
  CHECK_THAT(resolve_time_limit(options, {{"SLURM_JOB_END_TIME", "x"}}, 1000), Contains("no time"));
  CHECK_THAT(resolve_time_limit(options, {{"SLURM_JOB_END_TIME", "999"}}, 1000),
             Contains("has passed"));
  CHECK(resolve_time_limit(options, {{"SLURM_JOB_END_TIME", "4600"}}, 1000).empty());
  CHECK(options.time_limit == 1h);
  PreemptionOptions fixed = parse_preemption(flags_of("none", "2h"), problems);
  CHECK(resolve_time_limit(fixed, {}, 1000).empty());
  CHECK(fixed.time_limit == 2h);
}
