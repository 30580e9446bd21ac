// SPDX-License-Identifier: Apache-2.0
// Thresholds, the choice of checks, the printed report, and questions that nobody answers.
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <set>

#include "common/error.h"
#include "ctl/doctor/probe.h"
#include "ctl/doctor/report.h"
#include "tests/ctl/doctor/fake_root.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::doctor {
namespace {

using ddprun::test::Contains;

std::string refusal(const std::string& text) {
  return ddprun::test::error_of([&] { Thresholds::parse(text, "doctor.toml"); }).what();
}

Report report_of(std::vector<Verdict> verdicts) {
  Report report{"gpu07", WallTime{}, 0.01, {}};
  const std::vector<Check>& checks = check_table();
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    report.findings.push_back(
        {checks[i].name, checks[i].group, {verdicts[i], "seen\xff", "wanted", "fix it"}, "why"});
  }
  return report;
}

TEST_CASE("doctor: a file of thresholds changes what it names, in both of TOML's spellings") {
  const auto thresholds = Thresholds::parse("[open_files]\nwarn = 100\n", "doctor.toml");
  CHECK(thresholds.at("open_files.warn") == 100);
  CHECK(thresholds.at("open_files.fail") == 4096);
  CHECK(Thresholds::parse("disk.used_warn = 99.5", "doctor.toml").at("disk.used_warn") == 99.5);
}

TEST_CASE("doctor: an error in a file of thresholds is said with its line") {
  CHECK(refusal("\"a\\nb\" = 1").find('\n') == std::string::npos);
  CHECK(refusal("\n[open_files]\nwarm = 1\n") ==
        "doctor.toml:3: unknown key open_files.warm (did you mean open_files.warn?)");
  CHECK_THAT(refusal("open_files.warn = \"many\""), Contains("open_files.warn wants a number"));
  CHECK_THAT(refusal("open_files.warn = -1"), Contains("a number of 0 or more"));
  CHECK_THAT(refusal("open_files.warn = true"), Contains("wants a number"));
  CHECK_THAT(refusal("open_files.warn = nan"), Contains("wants a number"));
  CHECK_THAT(refusal("[open_files\n"), Contains("doctor.toml:1: "));
  CHECK_THAT(refusal("open_files = 3"), Contains("unknown key open_files"));
  CHECK_THAT(refusal("a = 1\nopen_files.warn = -1\nb = 1"),
             Contains("doctor.toml:1: unknown key a\ndoctor.toml:2: open_files.warn wants") &&
                 Contains("\ndoctor.toml:3: unknown key b"));
}

TEST_CASE("doctor: checks are chosen by name and by group, and each has a name of its own") {
  CHECK(parse_checks("mtu,gpu", "--only").size() == 13);
  const auto wrong = ddprun::test::error_of([] { parse_checks("rmem_mx", "--only"); });
  CHECK_THAT(wrong.what(),
             Contains("--only: there is no check \"rmem_mx\" (did you mean rmem_max?)"));
  CHECK(ddprun::test::error_of([] { parse_checks("mtu,", "--skip"); }).code() ==
        ErrorCode::kInvalidArgument);
  std::set<std::string> names;
  for (const Check& check : check_table()) {
    CHECK(names.insert(check.name).second);
    CHECK(std::string(check.why).size() > 10);
  }
}

TEST_CASE("doctor: the worst verdict decides, as Nagios has it, and skipped ones don't count") {
  using enum Verdict;
  const auto code = [](std::vector<Verdict> verdicts) {
    return exit_code_of(verdict_of(report_of(std::move(verdicts)).findings));
  };
  CHECK(code({}) == 0);
  CHECK(code({kOk, kSkipped}) == 0);
  CHECK(code({kOk, kUnknown, kSkipped}) == 3);
  CHECK(code({kUnknown, kWarn, kOk}) == 1);
  CHECK(code({kWarn, kFail, kUnknown}) == 2);
}

TEST_CASE("doctor: the table has the worst first, and the rest in a line, unless all is wanted") {
  using enum Verdict;
  const Report report = report_of({kOk, kWarn, kSkipped, kFail, kUnknown});
  const std::string table = to_table(report, false);
  CHECK(table.find("fail    ") < table.find("warn    "));
  CHECK(table.find("warn    ") < table.find("unknown "));
  CHECK_THAT(table, Contains("ok      1: rmem_max\n"));
  CHECK_THAT(table, Contains("skipped 1: tcp_rmem\n"));
  CHECK_THAT(table, Contains("why: why\n"));
  CHECK_THAT(table, Contains("gpu07: fail (1 fail, 1 warn, 1 unknown, 1 ok, 1 skipped, 0.01 s)\n"));
  CHECK_THAT(to_table(report, true), Contains("ok      rmem_max              seen"));
}

TEST_CASE("doctor: the gate's line has what is as bad as it says, the worst first, or nothing") {
  using enum Verdict;
  CHECK(gate_line(report_of({kOk, kWarn, kUnknown, kSkipped}), kFail) == "");
  CHECK(gate_line(report_of({kOk, kWarn, kUnknown}), kWarn) ==
        "wmem_max: seen\xff; wanted: wanted\n");
  CHECK_THAT(gate_line(report_of({kWarn, kFail}), kWarn),
             Contains("wmem_max") && Contains(" — rmem"));
  CHECK_THAT(gate_line(report_of({kFail, kFail, kFail, kFail, kFail}), kFail),
             Contains(" and 2 more\n"));
}

TEST_CASE("doctor: a file of thresholds may leave checks out") {
  const auto thresholds = Thresholds::parse("skip = [\"mtu\", \"gpu\"]", "doctor.toml");
  CHECK(thresholds.skip() == "mtu,gpu");
  CHECK(Thresholds::parse("skip = []", "doctor.toml").skip().empty());
  CHECK_THAT(refusal("skip = [1]"), Contains("skip wants names"));
  CHECK_THAT(refusal("skip = \"mtu\""), Contains("doctor.toml:1: skip wants names of checks"));
  CHECK_THAT(refusal("skip = [1]"), Contains("skip wants names of checks"));
}

TEST_CASE("doctor: the JSON page has every finding, whatever was seen") {
  using enum Verdict;
  const auto page = boost::json::parse(to_json(report_of({kOk, kWarn})));
  CHECK(page.at("verdict").as_string() == "warn");
  CHECK(page.at("exit_code").to_number<int>() == 1);
  CHECK(page.at("counts").at("ok").to_number<int>() == 1);
  const auto& finding = page.at("findings").as_array().at(1);
  CHECK(finding.at("check").as_string() == "wmem_max");
  CHECK(finding.at("fix").as_string() == "fix it");
}

TEST_CASE("doctor: a probe's answer comes as it was given, a probe that fails has none") {
  Probe probe([] { return Probe::Fields{"", "a b", ""}; });
  CHECK(probe.answer(Deadline::after(std::chrono::seconds(20))) == Probe::Fields{"", "a b", ""});
  Probe thrower([]() -> Probe::Fields { throw Error(ErrorCode::kSystem, "no"); });
  CHECK(!thrower.answer(Deadline::after(std::chrono::seconds(20))));
}

TEST_CASE("doctor: a probe that never answers is left behind at the deadline") {
  const auto begin = Clock::now();
  Probe probe([] {
    for (;;) ::pause();
    return Probe::Fields{};
  });
  CHECK(!probe.answer(Deadline::after(std::chrono::milliseconds(20))));
  CHECK(Clock::now() - begin < std::chrono::seconds(10));
}

}  // namespace
}  // namespace ddprun::doctor
