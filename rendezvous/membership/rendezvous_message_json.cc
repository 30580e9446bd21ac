// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/rendezvous_message_json.h"

#include <string>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/membership/codec.h"
#include "rendezvous/membership/failure_json.h"
#include "rendezvous/membership/message_by_name.h"

namespace ddprun::membership {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxVictims = 9;
static_assert(kMaxLedgerBytes <= kMaxTextBytes, "one string of a message");

// ---- one name and one pair of functions per message ----

const char* name_of(const Welcome&) { return "welcome"; }
const char* name_of(const Waiting&) { return "waiting"; }
const char* name_of(const StartRound&) { return "start_round"; }
const char* name_of(const Preempt&) { return "preempt"; }
const char* name_of(const StopRound&) { return "stop_round"; }
const char* name_of(const JobEnd&) { return "job_end"; }
const char* name_of(const Refused&) { return "refused"; }
const char* name_of(const Inspect&) { return "inspect"; }
const char* name_of(const HangVerdict&) { return "hang_verdict"; }
const char* name_of(const Record&) { return "record"; }
const char* name_of(const TailWanted&) { return "tail_wanted"; }

void put(json::object& out, const Preempt& message) {
  out["round"] = counter_value(message.round);
  out["reason"] = clean_text(message.reason);
  out["notice_ms"] = message.notice.count();
}
void get(const JsonFields& in, Preempt& message) {
  message.round = in.counter("round");
  message.reason = in.clipped("reason", kMaxShownBytes);
  message.notice = in.time("notice_ms");
}

void put(json::object& out, const Welcome& welcome) {
  out["version"] = welcome.version;
  out["session"] = clean_text(welcome.session);
  out["your_addr"] = clean_text(welcome.your_addr);
  out["keep_alive_ms"] = time_value(welcome.keep_alive);
  out["embedded"] = welcome.embedded;
  out["clock_us"] = welcome.clock_us;
}
void get(const JsonFields& in, Welcome& welcome) {
  welcome.version = in.has("term") ? kPairVersion : in.small("version", 0, kMaxInt);
  // Likewise: the agent says so and ends.
  if (welcome.version < kOldestProtocolVersion || welcome.version > kProtocolVersion) return;
  welcome.session = in.text("session");
  welcome.your_addr = in.text("your_addr");
  welcome.keep_alive = in.time("keep_alive_ms");
  welcome.embedded = in.boolean("embedded");
  welcome.clock_us = in.integer("clock_us", 0, kMaxMicroseconds);
}

void put(json::object& out, const Waiting& waiting) {
  out["have_nodes"] = waiting.have_nodes;
  out["need_nodes"] = waiting.need_nodes;
  out["note"] = clean_text(waiting.note);
  out["spare"] = waiting.spare;
}
void get(const JsonFields& in, Waiting& waiting) {
  waiting.have_nodes = in.small("have_nodes", 0, kMaxNodes);
  waiting.need_nodes = in.small("need_nodes", 0, kMaxNodes);
  waiting.note = in.clipped("note", kMaxShownBytes);
  waiting.spare = in.boolean("spare");
}

void put(json::object& out, const StartRound& start) {
  out["round"] = counter_value(start.round);
  out["restart_count"] = start.restart_count;
  out["node_rank"] = start.node_rank;
  out["num_nodes"] = start.num_nodes;
  out["first_global_rank"] = start.first_global_rank;
  out["world_size"] = start.world_size;
  out["first_role_rank"] = start.first_role_rank;
  out["role_world_size"] = start.role_world_size;
  out["node_addr"] = clean_text(start.node_addr);
  out["master_node_addr"] = clean_text(start.master_node_addr);
  out["master_addr"] = clean_text(start.master_addr);
  out["master_port"] = start.master_port;
  out["serve_store"] = start.serve_store;
  if (start.in_place) out["in_place"] = true;
}
void get(const JsonFields& in, StartRound& start) {
  start.round = in.counter("round");
  start.restart_count = in.small("restart_count", 0, kMaxInt);
  start.node_rank = in.small("node_rank", 0, kMaxNodes);
  start.num_nodes = in.small("num_nodes", 1, kMaxNodes);
  start.first_global_rank = in.small("first_global_rank", 0, kMaxInt);
  start.world_size = in.small("world_size", 1, kMaxInt);
  start.first_role_rank = in.small("first_role_rank", 0, kMaxInt);
  start.role_world_size = in.small("role_world_size", 1, kMaxInt);
  start.node_addr = in.text("node_addr");
  start.master_node_addr = in.text("master_node_addr");
  start.master_addr = in.text("master_addr");
  start.master_port = in.port("master_port");
  start.serve_store = in.boolean("serve_store");
  if (in.has("in_place")) start.in_place = in.boolean("in_place");
}

void put(json::object& out, const StopRound& stop) {
  out["round"] = counter_value(stop.round);
  out["reason"] = clean_text(stop.reason);
  if (stop.keep.count() > 0) out["keep_ms"] = time_value(stop.keep);
  if (stop.last) out["last"] = true;
}
void get(const JsonFields& in, StopRound& stop) {
  stop.round = in.counter("round");
  stop.reason = in.clipped("reason", kMaxShownBytes);
  if (in.has("keep_ms")) stop.keep = in.time("keep_ms");
  if (in.has("last")) stop.last = in.boolean("last");
}

void put(json::object& out, const JobEnd& end) {
  out["exit_code"] = end.exit_code;
  out["reason"] = clean_text(end.reason);
  if (end.first_failure) out["first_failure"] = failure_object(*end.first_failure);
  out["rounds"] = counter_value(end.rounds);
  out["summary"] = clean_text(end.summary);
  json::array victims;
  for (const std::string& line : end.victims) {
    if (victims.size() < kMaxVictims) victims.push_back(clean_text(line));
  }
  out["victims"] = std::move(victims);
  // Nothing that fits is cut: the bound has room for a "…".
  json::string ledger = clean_text(end.ledger, kMaxLedgerBytes + 3);
  const bool is_whole = !ledger.empty() && ledger.size() <= kMaxLedgerBytes;
  if (is_whole) out["ledger"] = std::move(ledger);
  if (end.excluded.empty()) return;
  json::array excluded;
  for (const std::string& line : end.excluded) {
    if (excluded.size() < kMaxShownNodes) excluded.push_back(clean_text(line));
  }
  out["excluded"] = std::move(excluded);
}
void get(const JsonFields& in, JobEnd& end) {
  end.exit_code = in.small("exit_code", 0, 255);
  end.reason = in.clipped("reason", kMaxShownBytes);
  if (in.has("first_failure")) end.first_failure = read_failure(in.object("first_failure"));
  end.rounds = in.counter("rounds");
  end.summary = in.clipped("summary", kMaxShownBytes);
  end.victims = in.texts("victims", kMaxVictims, kMaxShownBytes);
  if (in.has("ledger")) end.ledger = in.text("ledger");
  if (in.has("excluded")) end.excluded = in.texts("excluded", kMaxShownNodes, kMaxShownBytes);
}

void put(json::object& out, const Refused& refused) {
  out["message"] = clean_text(refused.message);
  out["exit_code"] = refused.exit_code;
  out["again"] = refused.again;
}
void get(const JsonFields& in, Refused& refused) {
  refused.message = in.clipped("message", kMaxShownBytes);
  refused.exit_code = in.small("exit_code", 0, 255);
  refused.again = in.boolean("again");
}

void put(json::object& out, const Inspect& inspect) {
  out["round"] = counter_value(inspect.round);
  out["inquiry"] = counter_value(inspect.inquiry);
}
void get(const JsonFields& in, Inspect& inspect) {
  inspect.round = in.counter("round");
  inspect.inquiry = in.counter("inquiry");
}

void put(json::object& out, const HangVerdict& verdict) {
  out["round"] = counter_value(verdict.round);
  out["text"] = clean_text(verdict.text);
  json::array lines;
  for (const std::string& line : verdict.lines) {
    if (lines.size() < kMaxVerdictLines) lines.push_back(clean_text(line, kMaxLineBytes));
  }
  out["lines"] = std::move(lines);
}
void get(const JsonFields& in, HangVerdict& verdict) {
  verdict.round = in.counter("round");
  verdict.text = in.clipped("text", kMaxShownBytes);
  verdict.lines = in.texts("lines", kMaxVerdictLines, kMaxLineBytes);
}

void put(json::object& out, const Record& record) { out["round"] = counter_value(record.round); }
void get(const JsonFields& in, Record& record) { record.round = in.counter("round"); }

void put(json::object& out, const TailWanted& wanted) {
  out["round"] = counter_value(wanted.round);
  out["request"] = counter_value(wanted.request);
  out["global_rank"] = wanted.global_rank;
}
void get(const JsonFields& in, TailWanted& wanted) {
  wanted.round = in.counter("round");
  wanted.request = in.counter("request");
  wanted.global_rank = in.small("global_rank", 0, kMaxInt);
}

}  // namespace

const char* type_of(const RendezvousMessage& message) {
  return variants::visit([](const auto& each) { return name_of(each); }, message);
}

void put_message(json::object& out, const RendezvousMessage& message) {
  variants::visit([&](const auto& each) { put(out, each); }, message);
}

bool get_message(std::string_view type, const JsonFields& in, RendezvousMessage& message) {
  if (type == "claim") {
    message = Welcome{.version = kPairVersion};
    return true;
  }
  return get_by_name(message, [&](auto& candidate) {
    if (type != name_of(candidate)) return false;
    get(in, candidate);
    return true;
  });
}

}  // namespace ddprun::membership
