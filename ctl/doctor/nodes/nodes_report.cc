// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/nodes_report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <utility>

#include "common/json.h"
#include "common/log.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

namespace json = boost::json;

constexpr std::size_t kMostRows = 40;
constexpr std::size_t kMostDifferent = 3;  // findings of one check and verdict

bool is_same(const Outcome& one, const Outcome& other) {
  return one.verdict == other.verdict && one.seen == other.seen && one.fix == other.fix;
}

// Of one check. Where each node has seen something else, one of them stands for all.
std::vector<Finding> merge_findings(std::vector<Finding> found) {
  std::vector<Finding> merged;
  for (const Verdict verdict :
       {Verdict::kFail, Verdict::kWarn, Verdict::kUnknown, Verdict::kOk, Verdict::kSkipped}) {
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

std::string microseconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f µs", seconds * 1e6);
  return text;
}

}  // namespace

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
             microseconds_text(each.round_trip_seconds) + "\n";
  }
  if (pairs.size() > kMostRows)
    table += concat("        and ", pairs.size() - kMostRows, " more\n");
  return table;
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
  // Before the last line, which sums up.
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
    json::object node;
    node["node_rank"] = rank;
    node["answered"] = sheet != nullptr;
    if (sheet != nullptr) {
      node["host"] = shown_line(sheet->host);
      node["address"] = shown_line(sheet->address);
      node["interface"] = shown_line(sheet->interface);
      node["mtu"] = sheet->mtu;
      json::object versions;
      for (const auto& [name, version] : sheet->versions) versions[name] = shown_line(version);
      node["versions"] = std::move(versions);
    }
    all.push_back(std::move(node));
  }
  for (const PairMeasure& each : nodes.pairs) {
    json::object pair;
    pair["from"] = each.from;
    pair["to"] = each.to;
    pair["failure"] = shown_line(each.failure);
    pair["round_trip_seconds"] = each.round_trip_seconds;
    pair["bits_per_second"] = each.out_bits_per_second;
    pair["bits_per_second_back"] = each.in_bits_per_second;
    pair["times"] = each.times;
    pairs.push_back(std::move(pair));
  }
  page["nodes"] = std::move(all);
  page["pairs"] = std::move(pairs);
  return json::serialize(page) + "\n";
}

}  // namespace ddprun::doctor
