// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/gangs/gang_json.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <exception>
#include <utility>

#include "common/death_limits.h"
#include "common/json.h"
#include "common/parsed_number.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "common/utf8.h"
#include "rendezvous/membership/row_fields.h"
#include "rendezvous/messages/json_fields.h"

namespace ddprun::gangs {
namespace {

using membership::json_of, membership::JsonFields, membership::JsonReader, membership::JsonWriter;
using membership::MaybeConst;

template <typename Phase>
Phase phase_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(last_of(Phase())); ++i) {
    if (name == to_string(static_cast<Phase>(i))) return static_cast<Phase>(i);
  }
  throw_error(ErrorCode::kProtocol, "there is no phase \"", one_line(name), "\"");
}

template <typename Phase, typename Fields>
void phase_field(Phase& phase, Fields& fields) {
  std::string name = to_string(phase);
  fields.whole("phase", name);
  if constexpr (Fields::kReads) phase = phase_named<Phase>(name);
}

bool read_places(std::string_view text, std::vector<OutputPlace>& places) {
  for (const std::string_view each : parts_between(text, ',')) {
    const auto parts = parts_between(each, ':');
    if (parts.size() != 3 || !is_gang_name(parts[0]) || places.size() == kMaxAskedNodes) {
      return false;
    }
    const auto out = parsed_number<std::int64_t>(parts[1]);  // the type that an agent reads
    const auto err = parsed_number<std::int64_t>(parts[2]);
    if (!out || !err || *out < 0 || *err < 0) return false;
    places.push_back({std::string(parts[0]), static_cast<std::uint64_t>(*out),
                      static_cast<std::uint64_t>(*err)});
  }
  return true;
}

bool read_query(std::string_view query, GangTarget& target) {
  for (const std::string_view each : parts_between(query, '&')) {
    const std::size_t equals = each.find('=');
    if (equals == each.npos) return false;
    const auto name = each.substr(0, equals), value = each.substr(equals + 1);
    if (name == "from") {
      if (!read_places(value, target.from)) return false;
    } else if (name == "seen") {
      target.seen = parsed_number<std::uint64_t>(value);
      if (!target.seen) return false;
    } else if (name == "wait_ms") {
      const auto wait_ms = parsed_number<std::int64_t>(value);
      if (!wait_ms || *wait_ms < 0) return false;
      target.wait_ms = std::min(*wait_ms, kMaxOutputWaitMs);
    } else {
      return false;
    }
  }
  return true;
}

GangNews news_of(const GangQueue& queue, const GangQueue::Gang& gang) {
  GangNews news;
  news.state = gang.state;
  news.changes = gang.changes;
  if (gang.state.phase != GangPhase::kEnded) news.state.exit_code = 0;
  if (gang.state.phase != GangPhase::kQueued) return news;
  news.before = queue.num_before(gang);
  news.waits_for = queue.waits_for(gang);
  return news;
}

boost::json::object node_object(const GangQueue::Node& node, std::int64_t used) {
  boost::json::object object;
  object["node"] = node.name;
  object["user"] = node.user;
  object["slots"] = node.slots;
  object["used"] = used;
  object["is_away"] = !node.connection;
  object["address"] = node.address;
  object["version"] = membership::clean_utf8(node.version, kMaxNameBytes);
  return object;
}

bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t length = utf8_length(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

}  // namespace

template <MaybeConst<GangPart> Self, typename Fields>
void each_json(Self& part, Fields& fields) {
  fields.whole("node", part.node);
  fields.number("slots", part.slots, 0, kMaxSlots);
  phase_field(part.phase, fields);
  fields.number("exit_code", part.exit_code, -255, 255);
  fields.shown("reason", part.reason, kMaxReasonBytes);
}

template <MaybeConst<NodeOutput> Self, typename Fields>
void each_json(Self& output, Fields& fields) {
  fields.whole("node", output.at.node);
  fields.whole("out", output.out);
  fields.whole("err", output.err);
  fields.counter("out_next", output.out_next);
  fields.counter("err_next", output.err_next);
  fields.shown("reason", output.reason, kMaxReasonBytes);
}

template <MaybeConst<GangNews> Self, typename Fields>
void each_json(Self& news, Fields& fields) {
  auto& state = news.state;
  fields.whole("id", state.id);
  fields.whole("user", state.user);
  fields.shown("name", state.name, kMaxReasonBytes);
  phase_field(state.phase, fields);
  fields.counter("before", news.before);
  auto& reason = state.phase == GangPhase::kQueued ? news.waits_for : state.reason;
  fields.shown("reason", reason, kMaxReasonBytes);
  fields.number("exit_code", state.exit_code, -255, 255);
  fields.shown("cancelled", state.cancelled, kMaxReasonBytes);
  fields.counter("changes", news.changes);
  fields.number("min_nodes", state.min_nodes, 1, kMaxNodes);
  fields.number("max_nodes", state.max_nodes, 1, kMaxNodes);
  fields.whole("workers", state.workers);
  if constexpr (!Fields::kReads) fields.number("slots", state.slots, 0, kMaxSlots);
  fields.number("submitted", state.submitted, 0, membership::kMaxInt64);
  fields.number("began", state.began, 0, membership::kMaxInt64);
  fields.number("over", state.over, 0, membership::kMaxInt64);
  fields.objects("parts", state.parts, kMaxNodes);
}

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
    spec = membership::read_row<GangSpec>(body, {});
  } catch (const std::exception& error) {  // JSON errors, too
    throw_invalid(json_trouble(error));
  }
  const std::string wrong = check_spec(spec);
  if (!wrong.empty()) throw_invalid(wrong);
  return spec;
}

std::string gang_to_json(const GangSpec& spec) { return membership::row_of(spec); }

std::string gang_page(const GangQueue& queue, const GangQueue::Gang& gang) {
  JsonWriter page;
  page.object("gang", news_of(queue, gang));
  return written_json(page.take()) + "\n";
}

std::string gangs_page(const GangQueue& queue) {
  boost::json::array gangs, nodes;
  for (const auto& [number, gang] : queue.gangs()) gangs.push_back(json_of(news_of(queue, gang)));
  const std::map<std::string, std::int64_t> used = queue.used_slots();
  for (const auto& [key, node] : queue.nodes()) {
    nodes.push_back(node_object(node, used.at(node.name)));
  }
  boost::json::object page;
  page["gangs"] = std::move(gangs);
  page["nodes"] = std::move(nodes);
  return written_json(page) + "\n";
}

std::string logs_page(const GangQueue& queue, const GangQueue::Gang& gang,
                      const std::vector<NodeOutput>& output) {
  JsonWriter page;
  page.object("gang", news_of(queue, gang));
  page.objects("output", output, output.size());
  return written_json(page.take()) + "\n";
}

std::string no_gang_text(std::string_view id) { return concat("there is no gang ", id); }

GangNews parse_gang_page(std::string_view body) {
  const boost::json::object page = parsed_object(body);
  JsonReader reader(JsonFields(page, "the gang's page"));
  GangNews news;
  reader.object("gang", news);
  if (reader.has("output")) reader.objects("output", news.output, kMaxAskedNodes);
  return news;
}

std::vector<GangNews> parse_gangs_page(std::string_view body) {
  const boost::json::object page = parsed_object(body);
  std::vector<GangNews> all;
  constexpr std::size_t kMost = 100'000;
  JsonReader(JsonFields(page, "the queue's page")).objects("gangs", all, kMost);
  return all;
}

// ---- a client's steps before it submits a gang ----

std::int64_t stop_ms_of(std::chrono::milliseconds shutdown_timeout) {
  return (shutdown_timeout + kDdprunGoneMargin).count();
}

std::vector<std::string> take_environment(std::vector<std::string> variables, GangSpec& spec) {
  std::vector<std::string> notes;
  for (std::string& variable : variables) {
    if (is_text(variable)) {
      spec.environment.push_back(std::move(variable));
    } else {
      notes.push_back(concat("the variable ", one_line(variable.substr(0, variable.find('='))),
                             " is no UTF-8 text, and stays here"));
    }
  }
  return notes;
}

std::string check_submission(const GangSpec& spec, const std::string& keep_back) {
  if (!std::ranges::all_of(spec.arguments, is_text)) {
    return "the command line is no UTF-8 text: standing agents can't be told it";
  }
  if (!is_text(spec.directory)) {
    return "the directory's name is no UTF-8 text: standing agents can't be told it";
  }
  if (std::string wrong = check_spec(spec); !wrong.empty()) return wrong;
  const std::size_t bytes = gang_to_json(spec).size();
  if (bytes <= kMaxGangBytes) return {};
  return concat("the command line and the environment have ", bytes,
                " bytes, and a gang has at most ", kMaxGangBytes, ": keep variables back with ",
                keep_back);
}

}  // namespace ddprun::gangs
