// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/nodes_facts.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "common/json.h"
#include "common/text.h"

namespace ddprun::doctor {
namespace {

namespace json = boost::json;

// Lists each field of a report with its key. `Told` may be const.
template <typename Told, typename Type>
concept Of = std::is_same_v<std::remove_const_t<Told>, Type>;

template <Of<Finding> Told>
void each_field(Told& finding, const auto& field) {
  field("check", finding.check);
  field("group", finding.group);
  field("verdict", finding.outcome.verdict);
  field("seen", finding.outcome.seen);
  field("wanted", finding.outcome.wanted);
  field("why", finding.why);
  field("fix", finding.outcome.fix);
}

template <Of<NodeSheet> Told>
void each_field(Told& sheet, const auto& field) {
  field("node", sheet.node_rank);
  field("host", sheet.host);
  field("address", sheet.address);
  field("port", sheet.port);
  field("interface", sheet.interface);
  field("mtu", sheet.mtu);
  field("speed", sheet.speed_mbits);
  field("versions", sheet.versions);
  field("findings", sheet.findings);
}

template <Of<Greeting> Told>
void each_field(Told& greeting, const auto& field) {
  field("peer", greeting.peer);
  field.unless_empty("failure", greeting.failure);
  field("offset", greeting.offset_seconds);
  field("error", greeting.error_seconds);
}

template <Of<NameProblem> Told>
void each_field(Told& problem, const auto& field) {
  field("peer", problem.peer);
  field("what", problem.what);
}

template <Of<NodeReach> Told>
void each_field(Told& reach, const auto& field) {
  field("node", reach.node_rank);
  field("greetings", reach.greetings);
  field("names", reach.names);
}

template <Of<PairMeasure> Told>
void each_field(Told& measure, const auto& field) {
  field("from", measure.from);
  field("to", measure.to);
  field("failure", measure.failure);
  field("round_trip", measure.round_trip_seconds);
  field("out", measure.out_bits_per_second);
  field("in", measure.in_bits_per_second);
  field("frames", measure.frames);
}

template <typename Told>
json::object object_of(const Told& told);

struct FieldWriter {
  json::object& page;

  void operator()(const char* key, const std::string& text) const { page[key] = shown_line(text); }
  void operator()(const char* key, Verdict verdict) const { page[key] = to_string(verdict); }
  template <typename Number>
  void operator()(const char* key, Number number) const {
    page[key] = number;
  }
  void operator()(const char* key, const std::map<std::string, std::string>& texts) const {
    json::object& object = page[key].emplace_object();
    for (const auto& [name, text] : texts) object[name] = shown_line(text);
  }
  template <typename Item>
  void operator()(const char* key, const std::vector<Item>& items) const {
    json::array& list = page[key].emplace_array();
    for (const Item& each : items) list.push_back(object_of(each));
  }
  void unless_empty(const char* key, const std::string& text) const {
    if (!text.empty()) (*this)(key, text);
  }
};

template <typename Told>
json::object object_of(const Told& told) {
  json::object page;
  each_field(told, FieldWriter{page});
  return page;
}

template <typename Told>
Told told_by(const json::value& page);

struct FieldReader {
  const json::value& page;

  void operator()(const char* key, std::string& text) const { text = json_at::text(page, key); }
  void operator()(const char* key, Verdict& verdict) const {
    verdict = verdict_named(json_at::text(page, key));
  }
  template <typename Number>
  void operator()(const char* key, Number& number) const {
    number = static_cast<Number>(json_at::number(page, key).value_or(0));
  }
  void operator()(const char* key, std::map<std::string, std::string>& texts) const {
    const json::object* object = json_at::at(page, key).if_object();
    if (object == nullptr) return;
    for (const auto& [name, text] : *object) {
      if (text.is_string()) texts[name] = text.get_string();
    }
  }
  template <typename Item>
  void operator()(const char* key, std::vector<Item>& items) const {
    for (const json::value& each : json_at::list(page, key)) {
      if (each.is_object()) items.push_back(told_by<Item>(each));
    }
  }
  void unless_empty(const char* key, std::string& text) const { (*this)(key, text); }
};

template <typename Told>
Told told_by(const json::value& page) {
  Told told;
  each_field(told, FieldReader{page});
  return told;
}

template <typename Told>
std::optional<Told> parse_told(const std::string& text) {
  auto page = parse_object(text);
  return page ? std::optional(told_by<Told>(json::value(std::move(*page)))) : std::nullopt;
}

constexpr std::size_t kMostDigits = 9;

// Names with the same start and the same number of digits after it, or one name without digits.
struct NameKind {
  std::string start;
  std::size_t num_digits = 0;
  std::set<long> numbers;
};

std::string digits_text(long number, std::size_t width) {
  std::string text = std::to_string(number);
  return std::string(width - std::min(width, text.size()), '0') + text;
}

// Returns "01-30,32".
std::string ranges_text(const NameKind& kind) {
  std::string text;
  for (auto at = kind.numbers.begin(); at != kind.numbers.end();) {
    auto last = at;
    for (auto next = std::next(at); next != kind.numbers.end() && *next == *last + 1; ++next) {
      last = next;
    }
    text += (text.empty() ? "" : ",") + digits_text(*at, kind.num_digits);
    if (last != at) text += "-" + digits_text(*last, kind.num_digits);
    at = std::next(last);
  }
  return text;
}

std::string kind_text(const NameKind& kind) {
  if (kind.numbers.empty()) return kind.start;
  if (kind.numbers.size() == 1) {
    return kind.start + digits_text(*kind.numbers.begin(), kind.num_digits);
  }
  return kind.start + "[" + ranges_text(kind) + "]";
}

}  // namespace

json::object finding_object(const Finding& finding) { return object_of(finding); }

std::string to_json(const NodeSheet& sheet) { return json::serialize(object_of(sheet)); }
std::string to_json(const NodeReach& reach) { return json::serialize(object_of(reach)); }
std::string to_json(const PairMeasure& measure) { return json::serialize(object_of(measure)); }

std::optional<NodeSheet> parse_sheet(const std::string& text) {
  return parse_told<NodeSheet>(text);
}
std::optional<NodeReach> parse_reach(const std::string& text) {
  return parse_told<NodeReach>(text);
}
std::optional<PairMeasure> parse_measure(const std::string& text) {
  return parse_told<PairMeasure>(text);
}

const NodeSheet* NodesFacts::sheet(int node_rank) const {
  for (const NodeSheet& each : sheets) {
    if (each.node_rank == node_rank) return &each;
  }
  return nullptr;
}

std::string NodesFacts::name(int node_rank) const {
  const NodeSheet* own = sheet(node_rank);
  if (own == nullptr) return concat("node ", node_rank);
  const auto num_equal = std::count_if(
      sheets.begin(), sheets.end(), [&](const NodeSheet& each) { return each.host == own->host; });
  const std::string host = one_line(own->host);
  return num_equal == 1 ? host : concat(host, " (node ", node_rank, ")");
}

std::string NodesFacts::names(const std::vector<int>& node_ranks) const {
  std::vector<std::string> all;
  for (const int rank : node_ranks) all.push_back(name(rank));
  return host_ranges(all);
}

std::string NodesFacts::failure(int from, int to) const {
  for (const NodeReach& reach : reaches) {
    if (reach.node_rank != from) continue;
    for (const Greeting& each : reach.greetings) {
      if (each.peer == to) return each.failure;
    }
  }
  return "";
}

std::string host_ranges(const std::vector<std::string>& names, std::size_t most) {
  std::vector<NameKind> kinds;
  for (const std::string& name : names) {
    const std::size_t last = name.find_last_not_of("0123456789");
    std::size_t at = last == std::string::npos ? 0 : last + 1;
    if (at == 0 || name.size() - at > kMostDigits) at = name.size();
    const std::size_t num_digits = name.size() - at;
    const std::string start = name.substr(0, at);
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const NameKind& each) {
      return each.start == start && each.num_digits == num_digits;
    });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {start, num_digits, {}});
    if (num_digits > 0) kind->numbers.insert(std::stol(name.substr(at)));
  }
  std::string text;
  std::size_t left_out = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (i < most) {
      text += (i == 0 ? "" : ", ") + kind_text(kinds[i]);
    } else {
      left_out += std::max<std::size_t>(1, kinds[i].numbers.size());
    }
  }
  return left_out == 0 ? text : concat(text, " and ", left_out, " more");
}

}  // namespace ddprun::doctor
