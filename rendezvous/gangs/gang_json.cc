// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/gangs/gang_json.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <exception>
#include <limits>

#include "common/error.h"
#include "common/json.h"
#include "common/log.h"
#include "rendezvous/membership/json_fields.h"
#include "rendezvous/membership/row_fields.h"

namespace ddprun::gangs {
namespace {

using membership::JsonFields;

constexpr std::array<GangPhase, 4> kGangPhases = {GangPhase::kQueued, GangPhase::kRunning,
                                                  GangPhase::kStopping, GangPhase::kEnded};
constexpr std::array<PartPhase, 4> kPartPhases = {PartPhase::kGiven, PartPhase::kRuns,
                                                  PartPhase::kEnded, PartPhase::kLost};

template <typename Phase, std::size_t N>
Phase phase_named(const std::string& name, const std::array<Phase, N>& all) {
  const auto found =
      std::ranges::find_if(all, [&](Phase phase) { return name == to_string(phase); });
  if (found == all.end()) {
    throw Error(ErrorCode::kProtocol, concat("there is no phase \"", one_line(name), "\""));
  }
  return *found;
}

template <typename Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool read_places(std::string_view text, std::vector<OutputPlace>& places) {
  for (const std::string_view each : split(text, ',')) {
    const auto parts = split(each, ':');
    OutputPlace place;
    if (parts.size() != 3 || !is_gang_name(parts[0]) || !read_number(parts[1], place.out) ||
        !read_number(parts[2], place.err) || places.size() == kMaxAskedNodes) {
      return false;
    }
    place.node = parts[0];
    places.push_back(std::move(place));
  }
  return true;
}

bool read_query(std::string_view query, GangTarget& target) {
  for (const std::string_view each : split(query, '&')) {
    const std::size_t equals = each.find('=');
    if (equals == each.npos) return false;
    const auto name = each.substr(0, equals), value = each.substr(equals + 1);
    if (name == "from") {
      if (!read_places(value, target.from)) return false;
    } else if (name == "seen") {
      if (!read_number(value, target.seen.emplace())) return false;
    } else if (name == "wait_ms") {
      if (!read_number(value, target.wait_ms) || target.wait_ms < 0) return false;
      target.wait_ms = std::min(target.wait_ms, kMaxOutputWaitMs);
    } else {
      return false;
    }
  }
  return true;
}

boost::json::object gang_object(const GangQueue& queue, const GangQueue::Gang& gang) {
  const GangState& state = gang.state;
  boost::json::array parts;
  for (const GangPart& part : state.parts) {
    boost::json::object object;
    object["node"] = part.node;
    object["slots"] = part.slots;
    object["phase"] = to_string(part.phase);
    object["exit_code"] = part.exit_code;
    object["reason"] = membership::clean_utf8(part.reason, kMaxReasonBytes);
    parts.push_back(std::move(object));
  }
  const bool is_queued = state.phase == GangPhase::kQueued;
  boost::json::object object;
  object["id"] = state.id;
  object["user"] = state.user;
  object["name"] = membership::clean_utf8(state.name, kMaxReasonBytes);
  object["phase"] = to_string(state.phase);
  object["before"] = is_queued ? queue.num_before(gang) : 0;
  object["reason"] =
      membership::clean_utf8(is_queued ? queue.waits_for(gang) : state.reason, kMaxReasonBytes);
  object["exit_code"] = state.phase == GangPhase::kEnded ? state.exit_code : 0;
  object["cancelled"] = membership::clean_utf8(state.cancelled, kMaxReasonBytes);
  object["changes"] = static_cast<std::int64_t>(gang.changes);
  object["min_nodes"] = state.min_nodes;
  object["max_nodes"] = state.max_nodes;
  object["workers"] = state.workers;
  object["slots"] = state.slots;
  object["submitted"] = state.submitted;
  object["began"] = state.began;
  object["over"] = state.over;
  object["parts"] = std::move(parts);
  return object;
}

boost::json::object node_object(const GangQueue& queue, const GangQueue::Node& node) {
  boost::json::object object;
  object["node"] = node.name;
  object["user"] = node.user;
  object["slots"] = node.slots;
  object["used"] = queue.used_slots(node.name);
  object["is_away"] = !node.connection;
  object["address"] = node.address;
  object["version"] = membership::clean_utf8(node.version, kMaxNameBytes);
  return object;
}

GangNews news_in(const JsonFields& fields) {
  GangNews news;
  GangState& state = news.state;
  state.id = fields.text("id");
  state.user = fields.text("user");
  state.name = fields.clipped("name", kMaxReasonBytes);
  state.phase = phase_named(fields.text("phase"), kGangPhases);
  news.before = static_cast<std::size_t>(fields.counter("before"));
  const std::string reason = fields.clipped("reason", kMaxReasonBytes);
  (state.phase == GangPhase::kQueued ? news.waits_for : state.reason) = reason;
  state.exit_code = fields.small("exit_code", -255, 255);
  state.cancelled = fields.clipped("cancelled", kMaxReasonBytes);
  news.changes = fields.counter("changes");
  state.min_nodes = fields.small("min_nodes", 1, kMaxNodes);
  state.max_nodes = fields.small("max_nodes", 1, kMaxNodes);
  state.workers = fields.text("workers");
  state.submitted = static_cast<std::int64_t>(fields.counter("submitted"));
  state.began = static_cast<std::int64_t>(fields.counter("began"));
  state.over = static_cast<std::int64_t>(fields.counter("over"));
  for (const JsonFields& each : fields.objects("parts", kMaxNodes)) {
    GangPart part;
    part.node = each.text("node");
    part.slots = each.small("slots", 0, kMaxSlots);
    part.phase = phase_named(each.text("phase"), kPartPhases);
    part.exit_code = each.small("exit_code", -255, 255);
    part.reason = each.clipped("reason", kMaxReasonBytes);
    state.parts.push_back(std::move(part));
  }
  return news;
}

boost::json::object parsed(std::string_view body) {
  auto object = parse_object(body);
  if (!object) throw Error(ErrorCode::kProtocol, "it is no JSON object");
  return std::move(*object);
}

}  // namespace

bool is_gangs_target(std::string_view target) {
  constexpr std::string_view kPath = kGangsPath;
  return target == kPath || (target.starts_with(kPath) && target[kPath.size()] == '/');
}

std::optional<GangTarget> parse_gang_target(std::string_view text) {
  if (!is_gangs_target(text)) return std::nullopt;
  text.remove_prefix(std::string_view(kGangsPath).size());
  GangTarget target;
  if (text.empty()) return target;
  text.remove_prefix(1);
  const std::size_t query = text.find('?');
  std::string_view path = text.substr(0, query);
  constexpr std::string_view kLogs = "/logs";
  target.is_logs = path.ends_with(kLogs);
  if (target.is_logs) path.remove_suffix(kLogs.size());
  if (!is_gang_name(path)) return std::nullopt;
  target.id = path;
  if (query == text.npos) return target;
  if (!target.is_logs || !read_query(text.substr(query + 1), target)) return std::nullopt;
  return target;
}

std::string logs_target(const std::string& id, const std::vector<OutputPlace>& from,
                        std::optional<std::uint64_t> seen, std::int64_t wait_ms) {
  std::string target = concat(kGangsPath, "/", id, "/logs?wait_ms=", wait_ms);
  if (seen) target += concat("&seen=", *seen);
  for (std::size_t i = 0; i < from.size(); ++i) {
    target += concat(i == 0 ? "&from=" : ",", from[i].node, ":", from[i].out, ":", from[i].err);
  }
  return target;
}

GangSpec parse_gang(std::string_view body) {
  GangSpec spec;
  try {
    membership::RowReader reader(body, {});
    each_field(spec, reader);
  } catch (const std::exception& error) {  // of JSON, too
    throw Error(ErrorCode::kInvalidArgument, json_trouble(error));
  }
  const std::string wrong = check_spec(spec);
  if (!wrong.empty()) throw Error(ErrorCode::kInvalidArgument, wrong);
  return spec;
}

std::string gang_to_json(const GangSpec& spec) {
  membership::RowWriter writer;
  each_field(spec, writer);
  return writer.text();
}

std::string gang_page(const GangQueue& queue, const GangQueue::Gang& gang) {
  boost::json::object page;
  page["gang"] = gang_object(queue, gang);
  return boost::json::serialize(page) + "\n";
}

std::string gangs_page(const GangQueue& queue) {
  boost::json::array gangs, nodes;
  for (const auto& [number, gang] : queue.gangs()) gangs.push_back(gang_object(queue, gang));
  for (const auto& [key, node] : queue.nodes()) nodes.push_back(node_object(queue, node));
  boost::json::object page;
  page["gangs"] = std::move(gangs);
  page["nodes"] = std::move(nodes);
  return boost::json::serialize(page) + "\n";
}

std::string logs_page(const GangQueue& queue, const GangQueue::Gang& gang,
                      const std::vector<NodeOutput>& output) {
  boost::json::array all;
  for (const NodeOutput& each : output) {
    boost::json::object object;
    object["node"] = each.at.node;
    object["out"] = each.out;
    object["err"] = each.err;
    object["out_next"] = static_cast<std::int64_t>(each.out_next);
    object["err_next"] = static_cast<std::int64_t>(each.err_next);
    object["reason"] = membership::clean_utf8(each.reason, kMaxReasonBytes);
    all.push_back(std::move(object));
  }
  boost::json::object page;
  page["gang"] = gang_object(queue, gang);
  page["output"] = std::move(all);
  return boost::json::serialize(page) + "\n";
}

std::string no_gang_text(std::string_view id) { return concat("there is no gang ", id); }

GangNews parse_gang_page(std::string_view body) {
  const boost::json::object page = parsed(body);
  const JsonFields fields(page, "the gang's page");
  GangNews news = news_in(fields.object("gang"));
  if (!fields.has("output")) return news;
  for (const JsonFields& each : fields.objects("output", kMaxAskedNodes)) {
    NodeOutput output;
    output.at.node = each.text("node");
    output.out = each.text("out");
    output.err = each.text("err");
    output.out_next = each.counter("out_next");
    output.err_next = each.counter("err_next");
    output.reason = each.clipped("reason", kMaxReasonBytes);
    news.output.push_back(std::move(output));
  }
  return news;
}

std::vector<GangNews> parse_gangs_page(std::string_view body) {
  const boost::json::object page = parsed(body);
  std::vector<GangNews> all;
  constexpr std::size_t kMost = 100'000;
  for (const JsonFields& each : JsonFields(page, "the queue's page").objects("gangs", kMost)) {
    all.push_back(news_in(each));
  }
  return all;
}

}  // namespace ddprun::gangs
