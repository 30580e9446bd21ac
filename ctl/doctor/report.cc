// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <iomanip>
#include <sstream>

#include "common/json.h"
#include "common/log.h"

namespace ddprun::doctor {
namespace {

namespace json = boost::json;

constexpr int kVerdictWidth = 8;
constexpr int kNameWidth = 22;

int urgency(Verdict verdict) { return static_cast<int>(verdict); }

std::size_t count_of(const Report& report, Verdict verdict) {
  return static_cast<std::size_t>(
      std::count_if(report.findings.begin(), report.findings.end(),
                    [&](const Finding& each) { return each.outcome.verdict == verdict; }));
}

void print_finding(std::ostream& table, const Finding& finding) {
  const Outcome& outcome = finding.outcome;
  const std::string indent(kVerdictWidth + kNameWidth, ' ');
  table << std::left << std::setw(kVerdictWidth) << to_string(outcome.verdict)
        << std::setw(kNameWidth - 1) << finding.check << ' '
        << (finding.where.empty() ? "" : finding.where + ": ") << outcome.seen;
  const bool is_trouble = urgency(outcome.verdict) >= urgency(Verdict::kWarn);
  if (!outcome.wanted.empty()) table << (is_trouble ? "; wanted: " : "; wanted ") << outcome.wanted;
  table << '\n';
  if (!is_trouble) return;
  table << indent << "why: " << finding.why << '\n';
  if (!outcome.fix.empty()) table << indent << "fix: " << outcome.fix << '\n';
}

// "ok      31: rmem_max, …", broken where a line gets long.
void print_names(std::ostream& table, const Report& report, Verdict verdict) {
  constexpr std::size_t kLineWidth = 100;
  const std::size_t count = count_of(report, verdict);
  if (count == 0) return;
  std::string line = concat(std::left, std::setw(kVerdictWidth), to_string(verdict), count, ":");
  for (const Finding& finding : report.findings) {
    if (finding.outcome.verdict != verdict) continue;
    if (line.size() + finding.check.size() > kLineWidth) {
      table << line << '\n';
      line = std::string(kVerdictWidth - 1, ' ');
    }
    line += " " + finding.check;
  }
  table << line << '\n';
}

std::string summary(const Report& report) {
  std::ostringstream line;
  line << report.host << ": " << to_string(verdict_of(report.findings)) << " (";
  for (const Verdict verdict :
       {Verdict::kFail, Verdict::kWarn, Verdict::kUnknown, Verdict::kOk, Verdict::kSkipped}) {
    line << count_of(report, verdict) << ' ' << to_string(verdict) << ", ";
  }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2f s)\n", report.seconds);
  return line.str() + seconds;
}

}  // namespace

boost::json::object finding_object(const Finding& finding) {
  boost::json::object object;
  object["check"] = finding.check;
  object["group"] = finding.group;
  object["verdict"] = to_string(finding.outcome.verdict);
  object["seen"] = shown_line(finding.outcome.seen);
  object["wanted"] = shown_line(finding.outcome.wanted);
  object["why"] = finding.why;
  object["fix"] = shown_line(finding.outcome.fix);
  return object;
}

Verdict verdict_of(const std::vector<Finding>& findings) {
  Verdict worst = Verdict::kOk;
  for (const Finding& finding : findings) {
    if (finding.outcome.verdict == Verdict::kSkipped) continue;
    worst = std::max(worst, finding.outcome.verdict);
  }
  return worst;
}

int exit_code_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWarn:
      return 1;
    case Verdict::kFail:
      return 2;
    case Verdict::kUnknown:
      return 3;
    case Verdict::kOk:
    case Verdict::kSkipped:
      return 0;
  }
  return 3;
}

std::string to_table(const Report& report, bool shows_all) {
  std::vector<Finding> findings = report.findings;
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return urgency(a.outcome.verdict) > urgency(b.outcome.verdict);
  });
  std::ostringstream table;
  for (const Finding& finding : findings) {
    if (shows_all || urgency(finding.outcome.verdict) >= urgency(Verdict::kUnknown)) {
      print_finding(table, finding);
    }
  }
  if (!shows_all) {
    print_names(table, report, Verdict::kOk);
    print_names(table, report, Verdict::kSkipped);
  }
  return table.str() + summary(report);
}

std::string gate_line(const Report& report, Verdict from) {
  std::vector<std::string> parts;
  for (const Verdict verdict : {Verdict::kFail, Verdict::kWarn}) {
    for (const Finding& finding : report.findings) {
      const Outcome& outcome = finding.outcome;
      if (outcome.verdict != verdict || verdict < from) continue;
      parts.push_back(concat(finding.check, ": ", outcome.seen,
                             outcome.wanted.empty() ? "" : "; wanted: " + outcome.wanted));
    }
  }
  constexpr std::size_t kMostParts = 3;
  std::string line;
  for (std::size_t i = 0; i < std::min(kMostParts, parts.size()); ++i) {
    line += (i == 0 ? "" : " — ") + parts[i];
  }
  if (parts.size() > kMostParts) line += concat(" and ", parts.size() - kMostParts, " more");
  return line.empty() ? "" : one_line(line) + "\n";
}

json::object report_object(const Report& report) {
  json::object page;
  page["version"] = DDPRUN_VERSION;
  page["host"] = shown_line(report.host);
  page["time"] = utc_text(report.time);
  page["tier"] = report.tier;
  page["verdict"] = to_string(verdict_of(report.findings));
  page["exit_code"] = exit_code_of(verdict_of(report.findings));
  page["seconds"] = report.seconds;
  json::object counts;
  for (const Verdict verdict :
       {Verdict::kFail, Verdict::kWarn, Verdict::kUnknown, Verdict::kOk, Verdict::kSkipped}) {
    counts[to_string(verdict)] = count_of(report, verdict);
  }
  page["counts"] = std::move(counts);
  json::array findings;
  for (const Finding& finding : report.findings) {
    findings.push_back(finding_object(finding));
  }
  page["findings"] = std::move(findings);
  return page;
}

std::string to_json(const Report& report) { return json::serialize(report_object(report)) + "\n"; }

std::string list_of_checks(const std::vector<const Check*>& checks) {
  std::ostringstream list;
  for (const Check* check : checks) {
    list << std::left << std::setw(kNameWidth) << check->name << std::setw(12) << check->group
         << check->reads << '\n';
  }
  return list.str();
}

}  // namespace ddprun::doctor
