// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/job_report.h"

#include <boost/json/parse.hpp>
#include <csignal>

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using std::chrono::seconds;

namespace {

constexpr Clock::time_point kReportBegun{seconds(1000)};
const WallTime kReportBegunWall{seconds(1763781307)};

JobReport report() {
  return JobReport({.job_id = "j",
                    .host = "h",
                    .pid = 7,
                    .program = "train",
                    .arguments = {"a", "\xff"},
                    .num_workers = 2,
                    .min_nodes = 1,
                    .max_nodes = 2,
                    .max_restarts = 3},
                   kReportBegun, kReportBegunWall);
}

membership::StartRound reported_round(int number) {
  membership::StartRound start;
  start.round = static_cast<std::uint64_t>(number);
  start.restart_count = number - 1;
  start.world_size = 4;
  return start;
}

boost::json::object parsed_report(const std::string& text) {
  CHECK(text.find('\n') == text.size() - 1);
  return boost::json::parse(text).as_object();
}

std::string state(const membership::JobEnd& verdict) {
  return std::string(
      parsed_report(report().text(verdict, false, 0, kReportBegun)).at("state").as_string());
}

membership::JobEnd ended_with(int exit_code) {
  membership::JobEnd end;
  end.exit_code = exit_code;
  end.rounds = 1;
  return end;
}

}  // namespace

TEST_CASE("job report: rounds of this node, with their times") {
  JobReport job = report();
  job.round_began(reported_round(1), kReportBegun + seconds(2));
  job.workers_run(kReportBegun + seconds(3));
  job.round_began(reported_round(2), kReportBegun + seconds(10));
  membership::JobEnd end = ended_with(0);
  end.rounds = 2;
  const auto out = parsed_report(
      job.text(end, false, 1, kReportBegun + seconds(12), {"/l/0/f.json", "/l/1/f.json"}));
  CHECK(out.at("written_by").at("flight_recorders") ==
        boost::json::value{"/l/0/f.json", "/l/1/f.json"});
  CHECK(out.at("began_at") == "2025-11-22T03:15:07Z");
  CHECK(out.at("ended_at") == "2025-11-22T03:15:19Z");
  CHECK(out.at("seconds").as_double() == 12.0);
  CHECK(out.at("restarts").to_number<int>() == 1);
  CHECK(out.at("job").as_object().at("arguments").as_array().at(1) == "\xef\xbf\xbd");
  const auto& here = out.at("written_by").as_object();
  CHECK(here.at("node_rank").as_int64() == 1);
  const auto& rounds = here.at("rounds").as_array();
  REQUIRE(rounds.size() == 2);
  CHECK(rounds[0].as_object().at("start_seconds").as_double() == 1.0);
  CHECK(rounds[0].as_object().at("run_seconds").as_double() == 7.0);
  CHECK(rounds[1].as_object().at("start_seconds").is_null());
  CHECK(rounds[1].as_object().at("began_at") == "2025-11-22T03:15:17Z");
}

TEST_CASE("job report: a long job's rounds are bounded") {
  JobReport job = report();
  for (int i = 1; i <= 1000; ++i) job.round_began(reported_round(i), kReportBegun);
  const auto out = parsed_report(job.text(ended_with(0), true, -1, kReportBegun));
  const auto& here = out.at("written_by").as_object();
  CHECK(here.at("rounds").as_array().size() == 100);
  CHECK(here.at("node_rank").is_null());
  CHECK(here.at("decided_by") == "this node");
}

TEST_CASE("job report: one word says how it ended") {
  CHECK(state(ended_with(0)) == "succeeded");
  CHECK(state(ended_with(75)) == "retryable");
  CHECK(state(ended_with(76)) == "no_progress");
  CHECK(state(ended_with(124)) == "time_limit");
  CHECK(state(ended_with(143)) == "stopped_by_signal");
  CHECK(state(ended_with(2)) == "failed");
  membership::JobEnd end = ended_with(75);
  end.first_failure.emplace();
  CHECK(state(end) == "worker_failed");
}

TEST_CASE("job report: the first failure, what another node sent is only data") {
  membership::JobEnd end = ended_with(137);
  end.first_failure.emplace();
  auto& failure = *end.first_failure;
  failure.signal_number = SIGKILL;
  failure.host = "\"}\n\xff";
  failure.last_lines = {"x\ty"};
  failure.error_fields = "{\"a\":[1]}";
  auto out =
      parsed_report(report().text(end, false, 0, kReportBegun)).at("first_failure").as_object();
  CHECK(out.at("signal_name") == "SIGKILL");
  CHECK(out.at("exit_code").is_null());
  CHECK(out.at("host") == "\"}\n\xef\xbf\xbd");
  CHECK(out.at("last_lines").as_array().at(0) == "x\ty");
  CHECK(out.at("error_fields") == boost::json::parse("{\"a\":[1]}"));
  CHECK(out.at("pid").is_null());
  CHECK(out.at("memory_peak_bytes").is_null());
  failure.memory_peak_bytes = 4096;
  failure.hung = true;
  failure.error_fields = "]";
  out = parsed_report(report().text(end, false, 0, kReportBegun)).at("first_failure").as_object();
  CHECK(out.at("memory_peak_bytes").to_number<int>() == 4096);
  CHECK(out.at("stack").as_array().size() == 1);
  CHECK(out.at("last_lines").as_array().empty());
  CHECK(out.at("error_fields").as_object().empty());
}
