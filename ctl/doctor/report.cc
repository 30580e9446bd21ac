// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/report.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <iomanip>
#include <sstream>
#include <utility>

#include "common/json.h"
#include "common/text.h"
#include "ctl/doctor/judge.h"
#include "ctl/number_texts.h"

namespace ddprun::doctor {
namespace {

namespace json = boost::json;

constexpr Verdict kWorstFirst[] = {Verdict::kFail, Verdict::kWarn, Verdict::kUnknown, Verdict::kOk,
                                   Verdict::kSkipped};
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

// Prints "ok      31: rmem_max, …", and breaks long lines.
void print_names(std::ostream& table, const Report& report, Verdict verdict) {
  constexpr std::size_t kLineWidth = 100;
  const std::size_t count = count_of(report, verdict);
  if (count == 0) return;
  std::string line = to_string(verdict);
  line.resize(std::max<std::size_t>(line.size(), kVerdictWidth), ' ');
  line += concat(count, ":");
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
  for (const Verdict verdict : kWorstFirst) {
    line << count_of(report, verdict) << ' ' << to_string(verdict) << ", ";
  }
  return line.str() + ctl::printed("%.2f s)\n", report.seconds);
}

constexpr std::size_t kMostRows = 40;
constexpr std::size_t kMostDifferent = 3;  // most findings of one check and verdict

bool is_same(const Outcome& one, const Outcome& other) {
  return one.verdict == other.verdict && one.seen == other.seen && one.fix == other.fix;
}

// Merges the findings of one check. If too many differ, the first one stands for all.
std::vector<Finding> merge_findings(std::vector<Finding> found) {
  std::vector<Finding> merged;
  for (const Verdict verdict : kWorstFirst) {
    std::vector<Finding> of_verdict;
    for (Finding& each : found) {
      if (each.outcome.verdict != verdict) continue;
      const auto same =
          std::find_if(of_verdict.begin(), of_verdict.end(),
                       [&](const Finding& other) { return is_same(each.outcome, other.outcome); });
      if (same == of_verdict.end()) {
        of_verdict.push_back(std::move(each));
      } else {
        same->outcome.nodes.push_back(each.outcome.nodes.front());
      }
    }
    const bool is_well = verdict == Verdict::kOk || verdict == Verdict::kSkipped;
    if (of_verdict.size() > (is_well ? 1 : kMostDifferent)) {
      Finding all = of_verdict.front();
      for (std::size_t i = 1; i < of_verdict.size(); ++i) {
        const auto& more = of_verdict[i].outcome.nodes;
        all.outcome.nodes.insert(all.outcome.nodes.end(), more.begin(), more.end());
      }
      std::sort(all.outcome.nodes.begin(), all.outcome.nodes.end());
      all.outcome.seen += concat(", and ", of_verdict.size() - 1, " others");
      of_verdict = {std::move(all)};
    }
    merged.insert(merged.end(), of_verdict.begin(), of_verdict.end());
  }
  return merged;
}

std::string padded(std::string text, std::size_t width) {
  std::size_t shown = 0;  // characters, not bytes
  for (const char each : text) shown += (static_cast<unsigned char>(each) & 0xC0) != 0x80;
  text.append(width - std::min(width, shown), ' ');
  return text;
}

json::object report_object(const Report& report) {
  const Verdict worst = verdict_of(report.findings);
  json::object counts;
  for (const Verdict verdict : kWorstFirst) counts[to_string(verdict)] = count_of(report, verdict);
  json::array findings;
  for (const Finding& finding : report.findings) findings.push_back(finding_object(finding));
  return {{"version", DDPRUN_VERSION},      {"host", shown_line(report.host)},
          {"time", utc_text(report.time)},  {"tier", report.tier},
          {"verdict", to_string(worst)},    {"exit_code", exit_code_of(worst)},
          {"seconds", report.seconds},      {"counts", std::move(counts)},
          {"findings", std::move(findings)}};
}

// Returns the table of measured pairs, a row with bandwidth and round trip for each; empty: no pair
// was measured.
std::string pairs_table(const NodesFacts& nodes) {
  std::vector<PairMeasure> pairs = nodes.pairs;
  std::stable_sort(pairs.begin(), pairs.end(), [](const PairMeasure& a, const PairMeasure& b) {
    return std::min(a.out_bits_per_second, a.in_bits_per_second) <
           std::min(b.out_bits_per_second, b.in_bits_per_second);
  });
  std::size_t width = 0;
  for (const PairMeasure& each : pairs) {
    width = std::max({width, nodes.name(each.from).size(), nodes.name(each.to).size()});
  }
  std::string table;
  for (std::size_t i = 0; i < std::min(kMostRows, pairs.size()); ++i) {
    const PairMeasure& each = pairs[i];
    table += "        " + padded(nodes.name(each.from), width) + " – " +
             padded(nodes.name(each.to), width) + "  ";
    if (!each.failure.empty()) {
      table += one_line(each.failure) + "\n";
      continue;
    }
    table += padded("→ " + rate_text(each.out_bits_per_second), 14) +
             padded("← " + rate_text(each.in_bits_per_second), 14) + "round trip " +
             ctl::printed("%.0f µs", each.round_trip_seconds * 1e6) + "\n";
  }
  if (pairs.size() > kMostRows)
    table += concat("        and ", pairs.size() - kMostRows, " more\n");
  return table;
}

}  // namespace

Verdict verdict_of(const std::vector<Finding>& findings) {
  Verdict worst = Verdict::kOk;
  for (const Finding& finding : findings) {
    if (finding.outcome.verdict == Verdict::kSkipped) continue;
    worst = std::max(worst, finding.outcome.verdict);
  }
  return worst;
}

int exit_code_of(Verdict verdict) {
  constexpr std::array kCodes = {0, 0, 3, 1, 2};  // in the order of Verdict
  return kCodes.at(static_cast<std::size_t>(verdict));
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
  return parts.empty() ? "" : one_line(first_listed(parts, kMostParts, {}, " — ")) + "\n";
}

std::string to_json(const Report& report) { return written_json(report_object(report)) + "\n"; }

std::string list_of_checks(const std::vector<const Check*>& checks) {
  std::ostringstream list;
  for (const Check* check : checks) {
    list << std::left << std::setw(kNameWidth) << check->name << std::setw(12) << check->group
         << check->reads << '\n';
  }
  return list.str();
}

std::vector<Finding> group_findings(const NodesFacts& nodes,
                                    const std::vector<const Check*>& checks) {
  std::vector<Finding> grouped;
  for (const Check* check : checks) {
    if (check->is_of_nodes()) continue;
    std::vector<Finding> found;
    for (const NodeSheet& sheet : nodes.sheets) {
      for (const Finding& each : sheet.findings) {
        if (each.check != check->name) continue;
        found.push_back(each);
        found.back().outcome.nodes = {sheet.node_rank};
      }
    }
    for (Finding& each : merge_findings(std::move(found))) {
      const bool is_all =
          each.outcome.nodes.size() == nodes.sheets.size() && nodes.sheets.size() > 1;
      each.where = is_all ? "all nodes" : nodes.names(each.outcome.nodes);
      grouped.push_back(std::move(each));
    }
  }
  return grouped;
}

std::string nodes_table(const Report& report, const NodesFacts& nodes, bool shows_all) {
  std::string table = to_table(report, shows_all);
  const bool is_about_ways =
      std::any_of(report.findings.begin(), report.findings.end(), [](const Finding& each) {
        return (each.check == "bandwidth" || each.check == "latency") &&
               (each.outcome.verdict == Verdict::kWarn || each.outcome.verdict == Verdict::kFail);
      });
  std::string middle;
  if (is_about_ways || shows_all) middle = pairs_table(nodes);
  if (!middle.empty()) middle = "pairs, the slowest first:\n" + middle;
  for (const std::string& note : nodes.notes) middle += "note: " + one_line(note) + "\n";
  // The lines are inserted before the last line, the summary.
  const std::size_t last = table.rfind('\n', table.size() - 2);
  return table.insert(last == std::string::npos ? 0 : last + 1, middle);
}

std::string nodes_json(const Report& report, const NodesFacts& nodes) {
  json::object page = report_object(report);
  json::array& findings = page["findings"].as_array();
  for (std::size_t i = 0; i < findings.size(); ++i) {
    json::array ranks;
    for (const int rank : report.findings[i].outcome.nodes) ranks.emplace_back(rank);
    findings[i].as_object()["nodes"] = std::move(ranks);
  }
  json::array all, pairs;
  for (int rank = 0; rank < nodes.num_nodes; ++rank) {
    const NodeSheet* sheet = nodes.sheet(rank);
    json::object node{{"node_rank", rank}, {"answered", sheet != nullptr}};
    if (sheet != nullptr) {
      node["host"] = shown_line(sheet->host);
      node["address"] = shown_line(sheet->address);
      node["interface"] = shown_line(sheet->interface);
      node["mtu"] = sheet->mtu;
      json::object& versions = node["versions"].emplace_object();
      for (const auto& [name, version] : sheet->versions) versions[name] = shown_line(version);
    }
    all.push_back(std::move(node));
  }
  for (const PairMeasure& each : nodes.pairs) {
    pairs.push_back(json::object{{"from", each.from},
                                 {"to", each.to},
                                 {"failure", shown_line(each.failure)},
                                 {"round_trip_seconds", each.round_trip_seconds},
                                 {"bits_per_second", each.out_bits_per_second},
                                 {"bits_per_second_back", each.in_bits_per_second},
                                 {"times", each.times}});
  }
  page["nodes"] = std::move(all);
  page["pairs"] = std::move(pairs);
  return written_json(page) + "\n";
}

}  // namespace ddprun::doctor
