// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/agent_message_json.h"

#include <limits>
#include <string>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/membership/codec.h"
#include "rendezvous/membership/failure_json.h"
#include "rendezvous/membership/job_settings.h"
#include "rendezvous/membership/message_by_name.h"
#include "rendezvous/membership/rank_report_json.h"

namespace ddprun::membership {
namespace {

namespace json = boost::json;

// ---- one name and one pair of functions per message ----

const char* name_of(const Join&) { return "join"; }
const char* name_of(const Ack&) { return "ack"; }
const char* name_of(const WorkersRunning&) { return "workers_running"; }
const char* name_of(const WorkerFailed&) { return "worker_failed"; }
const char* name_of(const WorkersSucceeded&) { return "workers_succeeded"; }
const char* name_of(const FirstStep&) { return "first_step"; }
const char* name_of(const WorkersStopped&) { return "workers_stopped"; }
const char* name_of(const WorkerRequest&) { return "worker_request"; }
const char* name_of(const WorkersLeft&) { return "workers_left"; }
const char* name_of(const Preempted&) { return "preempted"; }
const char* name_of(const Leave&) { return "leave"; }
const char* name_of(const RecordsWanted&) { return "records_wanted"; }
const char* name_of(const CutOff&) { return "cut_off"; }
const char* name_of(const Stalled&) { return "stalled"; }
const char* name_of(const Inspection&) { return "inspection"; }
const char* name_of(const StepTimes&) { return "step_times"; }
const char* name_of(const Tail&) { return "tail"; }

void put(json::object& out, const Join& join) {
  out["version"] = join.version;
  out["oldest_version"] = join.oldest_version;
  out["run_id"] = clean_text(join.run_id);
  out["instance"] = clean_text(join.instance);
  out["session"] = clean_text(join.session);
  out["settings"] = to_object(join.settings);
  json::object timeouts;
  timeouts["join_ms"] = time_value(join.timeouts.join);
  timeouts["last_call_ms"] = time_value(join.timeouts.last_call);
  timeouts["keep_alive_ms"] = time_value(join.timeouts.keep_alive);
  timeouts["start_ms"] = time_value(join.timeouts.start);
  timeouts["stop_grace_ms"] = time_value(join.timeouts.stop_grace);
  timeouts["exit_barrier_ms"] = time_value(join.timeouts.exit_barrier);
  timeouts["max_restart_delay_ms"] = time_value(join.timeouts.max_restart_delay);
  timeouts["replacement_ms"] = time_value(join.timeouts.replacement);
  timeouts["rendezvous_lost_ms"] = time_value(join.timeouts.rendezvous_lost);
  out["timeouts"] = std::move(timeouts);
  if (join.node_rank) out["node_rank"] = *join.node_rank;
  out["num_workers"] = join.num_workers;
  out["host"] = clean_text(join.host, kMaxNameBytes);
  if (!join.unfit.empty()) out["unfit"] = clean_text(join.unfit);
  out["pid"] = join.pid;
  out["advertised_addr"] = clean_text(join.advertised_addr);
  out["store_port"] = join.store_port;
  out["topology"] = clean_text(join.topology, kMaxLabelBytes);
  out["program"] = clean_text(join.program, kMaxLabelBytes);
  out["role"] = clean_text(join.role, kMaxLabelBytes);
  out["user_id"] = join.user_id;
  if (join.confirmed != 0) out["confirmed"] = counter_value(join.confirmed);
}

void get(const JsonFields& in, Join& join) {
  join.version = in.small("version", 0, kMaxInt);
  join.oldest_version =
      in.has("oldest_version") ? in.small("oldest_version", 0, join.version) : join.version;
  // Another version may have other fields: the rendezvous refuses it by name.
  if (!common_version(join)) return;
  join.run_id = in.text("run_id");
  join.instance = in.text("instance");
  join.session = in.text("session");
  if (join.run_id.empty() || join.instance.empty()) {
    throw Error(ErrorCode::kProtocol, "message \"join\": \"run_id\" or \"instance\" is empty");
  }
  join.settings = read_job_settings(in.object("settings"));
  const JsonFields timeouts = in.object("timeouts");
  join.timeouts.join = timeouts.time("join_ms");
  join.timeouts.last_call = timeouts.time("last_call_ms");
  join.timeouts.keep_alive = timeouts.time("keep_alive_ms");
  join.timeouts.start = timeouts.time("start_ms");
  join.timeouts.stop_grace = timeouts.time("stop_grace_ms");
  join.timeouts.exit_barrier = timeouts.time("exit_barrier_ms");
  join.timeouts.max_restart_delay = timeouts.time("max_restart_delay_ms");
  join.timeouts.replacement = timeouts.time("replacement_ms");
  if (timeouts.has("rendezvous_lost_ms")) {
    join.timeouts.rendezvous_lost = timeouts.time("rendezvous_lost_ms");
  }
  if (in.has("node_rank")) join.node_rank = in.small("node_rank", -1, kMaxInt);
  join.num_workers = in.small("num_workers", 1, kMaxWorkersPerNode);
  join.host = in.clipped("host", kMaxNameBytes);
  join.pid = in.integer("pid", 0, std::numeric_limits<std::int64_t>::max());
  join.advertised_addr = in.text("advertised_addr");
  join.store_port = in.port("store_port");
  if (in.has("unfit")) join.unfit = in.clipped("unfit", kMaxShownBytes);
  join.topology = in.clipped("topology", kMaxLabelBytes);
  join.program = in.clipped("program", kMaxLabelBytes);
  join.role = in.clipped("role", kMaxLabelBytes);
  join.user_id = static_cast<std::uint32_t>(
      in.integer("user_id", 0, std::numeric_limits<std::uint32_t>::max()));
  if (in.has("confirmed")) join.confirmed = in.counter("confirmed");
}

void put(json::object&, const Ack&) {}
void put(json::object& out, const RecordsWanted& wanted) {
  out["round"] = counter_value(wanted.round);
}
void get(const JsonFields& in, RecordsWanted& wanted) { wanted.round = in.counter("round"); }

void put(json::object&, const CutOff&) {}
void get(const JsonFields&, Ack&) {}
void get(const JsonFields&, CutOff&) {}

void put(json::object& out, const WorkersRunning& message) {
  out["round"] = counter_value(message.round);
}
void get(const JsonFields& in, WorkersRunning& message) { message.round = in.counter("round"); }

void put(json::object& out, const WorkersSucceeded& message) {
  out["round"] = counter_value(message.round);
}
void get(const JsonFields& in, WorkersSucceeded& message) { message.round = in.counter("round"); }

void put(json::object& out, const WorkerFailed& message) {
  out["round"] = counter_value(message.round);
  out["failure"] = failure_object(message.failure);
}
void get(const JsonFields& in, WorkerFailed& message) {
  message.round = in.counter("round");
  message.failure = read_failure(in.object("failure"));
}

void put(json::object& out, const WorkersStopped& message) {
  out["round"] = counter_value(message.round);
  out["store_port"] = message.store_port;
  out["last_step"] = counter_value(message.last_step);
  out["gone_at_us"] = message.gone_at_us;
  if (message.kept > 0) out["kept"] = message.kept;
}
void get(const JsonFields& in, WorkersStopped& message) {
  message.round = in.counter("round");
  message.store_port = in.port("store_port");
  message.last_step = in.counter("last_step");
  message.gone_at_us = in.integer("gone_at_us", 0, kMaxMicroseconds);
  if (in.has("kept")) message.kept = in.small("kept", 0, kMaxWorkersPerNode);
}

void put(json::object& out, const FirstStep& message) {
  out["round"] = counter_value(message.round);
  out["step"] = counter_value(message.step);
}
void get(const JsonFields& in, FirstStep& message) {
  message.round = in.counter("round");
  message.step = in.counter("step");
}

constexpr std::string_view kExcludeNode = "exclude_node", kStopJob = "stop_job";

void put(json::object& out, const WorkerRequest& request) {
  out["round"] = counter_value(request.round);
  out["request"] =
      json::string(request.kind == WorkerRequest::Kind::kExcludeNode ? kExcludeNode : kStopJob);
  out["global_rank"] = request.global_rank;
  out["reason"] = clean_text(request.reason);
  out["exit_code"] = request.exit_code;
}
void get(const JsonFields& in, WorkerRequest& request) {
  request.round = in.counter("round");
  const std::string kind = in.text("request");
  if (kind != kExcludeNode && kind != kStopJob) {
    throw Error(ErrorCode::kProtocol, concat("message \"worker_request\": \"request\" is \"",
                                             clean_utf8(kind, 32), "\""));
  }
  request.kind =
      kind == kExcludeNode ? WorkerRequest::Kind::kExcludeNode : WorkerRequest::Kind::kStopJob;
  const bool may_be_agent = request.kind == WorkerRequest::Kind::kExcludeNode;
  request.global_rank = in.small("global_rank", may_be_agent ? kAgentItself : 0, kMaxInt);
  request.reason = in.clipped("reason", kMaxShownBytes);
  request.exit_code = in.small("exit_code", 1, 255);
}

void put(json::object& out, const WorkersLeft& message) {
  out["round"] = counter_value(message.round);
}
void get(const JsonFields& in, WorkersLeft& message) { message.round = in.counter("round"); }

void put(json::object& out, const Preempted& message) {
  out["time_limit"] = message.kind == Preempted::Kind::kTimeLimit;
  out["reason"] = clean_text(message.reason);
  out["notice_ms"] = message.notice.count();
}
void get(const JsonFields& in, Preempted& message) {
  message.kind = in.boolean("time_limit") ? Preempted::Kind::kTimeLimit : Preempted::Kind::kNode;
  message.reason = in.clipped("reason", kMaxShownBytes);
  message.notice = in.time("notice_ms");
}

void put(json::object& out, const Leave& leave) {
  out["reason"] = clean_text(leave.reason);
  out["exit_code"] = leave.exit_code;
  out["alone"] = leave.alone;
}
void get(const JsonFields& in, Leave& leave) {
  leave.reason = in.clipped("reason", kMaxShownBytes);
  leave.exit_code = in.small("exit_code", 0, 255);
  leave.alone = in.boolean("alone");
}

void put(json::object& out, const Stalled& stalled) {
  out["round"] = counter_value(stalled.round);
  out["report"] = rank_report_object(stalled.report);
}
void get(const JsonFields& in, Stalled& stalled) {
  stalled.round = in.counter("round");
  stalled.report = read_rank_report(in.object("report"));
}

void put(json::object& out, const Inspection& inspection) {
  out["round"] = counter_value(inspection.round);
  out["inquiry"] = counter_value(inspection.inquiry);
  json::array ranks;
  for (const RankReport& rank : inspection.ranks) {
    if (ranks.size() < kMaxReportedRanks) ranks.push_back(rank_report_object(rank));
  }
  out["ranks"] = std::move(ranks);
}
void get(const JsonFields& in, Inspection& inspection) {
  inspection.round = in.counter("round");
  inspection.inquiry = in.counter("inquiry");
  for (const JsonFields& rank : in.objects("ranks", kMaxReportedRanks)) {
    inspection.ranks.push_back(read_rank_report(rank));
  }
}

void put(json::object& out, const StepTimes& times) {
  out["round"] = counter_value(times.round);
  json::array ranks;
  for (const RankStepTime& rank : times.ranks) {
    if (ranks.size() < kMaxReportedRanks) ranks.push_back(step_time_object(rank));
  }
  out["ranks"] = std::move(ranks);
  if (times.training) out["training"] = training_object(*times.training);
  if (times.monitor) out["monitor"] = node_report_object(*times.monitor);
}
void get(const JsonFields& in, StepTimes& times) {
  times.round = in.counter("round");
  for (const JsonFields& rank : in.objects("ranks", kMaxReportedRanks)) {
    times.ranks.push_back(read_step_time(rank));
  }
  if (in.has("training")) times.training = read_training(in.object("training"));
  if (in.has("monitor")) times.monitor = read_node_report(in.object("monitor"));
}

// From where on the last of `lines` are within the bounds.
std::size_t first_that_fits(const std::vector<std::string>& lines) {
  std::size_t first = lines.size(), num_bytes = 0;
  while (first > 0 && lines.size() - first < kMaxTailLines) {
    num_bytes += lines[first - 1].size();
    if (num_bytes > kMaxTailBytes) break;
    --first;
  }
  return first;
}

void put(json::object& out, const Tail& tail) {
  out["request"] = counter_value(tail.request);
  json::array lines;
  for (std::size_t i = first_that_fits(tail.lines); i < tail.lines.size(); ++i) {
    lines.push_back(line_text(tail.lines[i], kMaxLineBytes));
  }
  out["lines"] = std::move(lines);
  out["note"] = clean_text(tail.note);
}
void get(const JsonFields& in, Tail& tail) {
  tail.request = in.counter("request");
  tail.lines = in.texts("lines", kMaxTailLines, kMaxLineBytes);
  tail.lines.erase(tail.lines.begin(),
                   tail.lines.begin() + static_cast<std::ptrdiff_t>(first_that_fits(tail.lines)));
  tail.note = in.clipped("note", kMaxShownBytes);
}

}  // namespace

const char* type_of(const AgentMessage& message) {
  return variants::visit([](const auto& each) { return name_of(each); }, message);
}

void put_message(json::object& out, const AgentMessage& message) {
  variants::visit([&](const auto& each) { put(out, each); }, message);
}

bool get_message(std::string_view type, const JsonFields& in, AgentMessage& message) {
  return get_by_name(message, [&](auto& candidate) {
    if (type != name_of(candidate)) return false;
    get(in, candidate);
    return true;
  });
}

}  // namespace ddprun::membership
