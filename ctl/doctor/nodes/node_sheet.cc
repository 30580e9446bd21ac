// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/node_sheet.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "common/json.h"
#include "ctl/doctor/report.h"

namespace ddprun::doctor {
namespace {

namespace json = boost::json;

std::string text_at(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value && value->is_string() ? std::string(value->get_string()) : "";
}

double number_of(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value && value->is_number() ? value->to_number<double>() : 0;
}

int whole_of(const json::object& object, const char* key) {
  return static_cast<int>(number_of(object, key));
}

template <typename Item, typename Read>
std::vector<Item> items_of(const json::object& object, const char* key, Read read) {
  std::vector<Item> items;
  const json::value* value = object.if_contains(key);
  if (!value || !value->is_array()) return items;
  for (const json::value& each : value->get_array()) {
    if (each.is_object()) items.push_back(read(each.get_object()));
  }
  return items;
}

Finding finding_of(const json::object& object) {
  Finding finding;
  finding.check = text_at(object, "check");
  finding.group = text_at(object, "group");
  finding.why = text_at(object, "why");
  finding.outcome.verdict = verdict_named(text_at(object, "verdict"));
  finding.outcome.seen = text_at(object, "seen");
  finding.outcome.wanted = text_at(object, "wanted");
  finding.outcome.fix = text_at(object, "fix");
  return finding;
}

}  // namespace

std::string to_json(const NodeSheet& sheet) {
  json::object page;
  page["node"] = sheet.node_rank;
  page["host"] = shown_line(sheet.host);
  page["address"] = shown_line(sheet.address);
  page["port"] = sheet.port;
  page["interface"] = shown_line(sheet.interface);
  page["mtu"] = sheet.mtu;
  page["speed"] = sheet.speed_mbits;
  json::object versions;
  for (const auto& [name, version] : sheet.versions) versions[name] = shown_line(version);
  page["versions"] = std::move(versions);
  json::array findings;
  for (const Finding& finding : sheet.findings) findings.push_back(finding_object(finding));
  page["findings"] = std::move(findings);
  return json::serialize(page);
}

std::string to_json(const NodeReach& reach) {
  json::object page;
  page["node"] = reach.node_rank;
  json::array greetings, names;
  for (const Greeting& each : reach.greetings) {
    json::object greeting;
    greeting["peer"] = each.peer;
    if (!each.failure.empty()) greeting["failure"] = shown_line(each.failure);
    greeting["offset"] = each.offset_seconds;
    greeting["error"] = each.error_seconds;
    greetings.push_back(std::move(greeting));
  }
  for (const NameProblem& each : reach.names) {
    json::object name;
    name["peer"] = each.peer;
    name["what"] = shown_line(each.what);
    names.push_back(std::move(name));
  }
  page["greetings"] = std::move(greetings);
  page["names"] = std::move(names);
  return json::serialize(page);
}

std::string to_json(const PairMeasure& measure) {
  json::object page;
  page["from"] = measure.from;
  page["to"] = measure.to;
  page["failure"] = shown_line(measure.failure);
  page["round_trip"] = measure.round_trip_seconds;
  page["out"] = measure.out_bits_per_second;
  page["in"] = measure.in_bits_per_second;
  page["frames"] = shown_line(measure.frames);
  return json::serialize(page);
}

std::optional<NodeSheet> parse_sheet(const std::string& text) {
  const auto page = parse_object(text);
  if (!page) return std::nullopt;
  NodeSheet sheet;
  sheet.node_rank = whole_of(*page, "node");
  sheet.host = text_at(*page, "host");
  sheet.address = text_at(*page, "address");
  sheet.port = whole_of(*page, "port");
  sheet.interface = text_at(*page, "interface");
  sheet.mtu = whole_of(*page, "mtu");
  sheet.speed_mbits = static_cast<long long>(number_of(*page, "speed"));
  if (const json::value* versions = page->if_contains("versions");
      versions && versions->is_object()) {
    for (const auto& [name, version] : versions->get_object()) {
      if (version.is_string()) sheet.versions[name] = std::string(version.get_string());
    }
  }
  sheet.findings = items_of<Finding>(*page, "findings", finding_of);
  return sheet;
}

std::optional<NodeReach> parse_reach(const std::string& text) {
  const auto page = parse_object(text);
  if (!page) return std::nullopt;
  NodeReach reach;
  reach.node_rank = whole_of(*page, "node");
  reach.greetings = items_of<Greeting>(*page, "greetings", [](const json::object& each) {
    return Greeting{whole_of(each, "peer"), text_at(each, "failure"), number_of(each, "offset"),
                    number_of(each, "error")};
  });
  reach.names = items_of<NameProblem>(*page, "names", [](const json::object& each) {
    return NameProblem{whole_of(each, "peer"), text_at(each, "what")};
  });
  return reach;
}

std::optional<PairMeasure> parse_measure(const std::string& text) {
  const auto page = parse_object(text);
  if (!page) return std::nullopt;
  return PairMeasure{whole_of(*page, "from"),   whole_of(*page, "to"),
                     text_at(*page, "failure"), number_of(*page, "round_trip"),
                     number_of(*page, "out"),   number_of(*page, "in"),
                     text_at(*page, "frames")};
}

}  // namespace ddprun::doctor
