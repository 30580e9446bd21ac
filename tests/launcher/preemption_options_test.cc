// SPDX-License-Identifier: Apache-2.0
#include "launcher/preemption_options.h"

#include <csignal>

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::test::Contains;

TEST_CASE("preemption: signals, notice and time limit, or what is wrong with them") {
  PreemptionOptions options;
  CHECK(options.signals == std::vector<int>{SIGUSR1});
  CHECK(parse_preemption_signals("USR1,SIGTERM,12", options).empty());
  CHECK(options.signals == std::vector<int>{SIGUSR1, SIGTERM, SIGUSR2});
  CHECK(parse_time_limit("90m", options).empty());
  CHECK(options.time_limit == 90min);
  CHECK(parse_preemption_notice("2m", options).empty());
  CHECK(options.notice == 2min);
  CHECK(parse_preemption_signals("none", options).empty());
  CHECK(options.signals.empty());
  CHECK_THAT(parse_preemption_signals("USR1,FOO", options), Contains("\"FOO\""));
  CHECK_THAT(parse_preemption_signals("SIGKILL", options), Contains("SIGKILL"));
  CHECK_THAT(parse_preemption_notice("0", options), Contains("wants a duration"));
  CHECK_THAT(parse_time_limit("soon", options), Contains("wants a duration"));
  CHECK_THAT(parse_time_limit("0", options), Contains("wants a duration"));
}

TEST_CASE("preemption: workers get the signal that came, unless it would mean a stop to them") {
  CHECK(signal_for_workers(SIGUSR1) == SIGUSR1);
  CHECK(signal_for_workers(SIGUSR2) == SIGUSR2);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    CHECK(signal_for_workers(number) == SIGUSR1);
  }
}

TEST_CASE("preemption: --time-limit=auto is Slurm's end of the job") {
  PreemptionOptions options;
  CHECK(parse_time_limit("auto", options).empty());
  CHECK_FALSE(options.time_limit);
  CHECK_THAT(resolve_time_limit(options, {}, 1000), Contains("SLURM_JOB_END_TIME is not set"));
  CHECK_THAT(resolve_time_limit(options, {{"SLURM_JOB_END_TIME", "x"}}, 1000), Contains("no time"));
  CHECK_THAT(resolve_time_limit(options, {{"SLURM_JOB_END_TIME", "999"}}, 1000),
             Contains("has passed"));
  CHECK_THAT(resolve_time_limit(options, {{"SLURM_JOB_END_TIME", "1060"}}, 1000),
             Contains("only 60 s are left") && Contains("60 s before that (--preemption-notice)"));
  CHECK(resolve_time_limit(options, {{"SLURM_JOB_END_TIME", "4600"}}, 1000).empty());
  CHECK(options.time_limit == 1h);
  PreemptionOptions fixed;
  CHECK(parse_time_limit("2h", fixed).empty());
  CHECK(resolve_time_limit(fixed, {}, 1000).empty());
  CHECK(fixed.time_limit == 2h);
}
