// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/messages/codec.h"

#include <algorithm>
#include <array>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/serialize.hpp>
#include <optional>
#include <span>
#include <utility>

#include "common/throw_error.h"
#include "rendezvous/messages/job_settings.h"
#include "rendezvous/messages/json_fields.h"

namespace ddprun::membership {
namespace {

namespace json = boost::json;

static_assert(kMaxTextBytes == JsonFields::kMaxTextBytes);
static_assert(kMaxLedgerBytes <= kMaxTextBytes, "one string of a message");

constexpr std::size_t kMaxDepth = 8;
constexpr std::size_t kParsedBytes = 16'384;  // buffer on the stack, enough for most messages

constexpr std::size_t kMaxLastLines = 20, kMaxTracebackLines = 24, kMaxLogFiles = 2;
constexpr std::size_t kMaxVictims = 9;
constexpr std::size_t kMaxWordBytes = 32;  // phase, state, kind of collective
constexpr std::size_t kMaxWchanBytes = 64;
constexpr std::size_t kMaxWorkBytes = 128;
constexpr std::size_t kMaxNoteBytes = 512;
constexpr std::int64_t kMaxStepMicroseconds = std::int64_t{1} << 50;
constexpr std::string_view kExcludeNode = "exclude_node", kStopJob = "stop_job";

// The types' names, in the order of the variants.
constexpr std::array kAgentTypes = {"join",
                                    "ack",
                                    "workers_running",
                                    "worker_failed",
                                    "workers_succeeded",
                                    "first_step",
                                    "workers_stopped",
                                    "worker_request",
                                    "workers_left",
                                    "preempted",
                                    "leave",
                                    "records_wanted",
                                    "cut_off",
                                    "stalled",
                                    "inspection",
                                    "step_times",
                                    "tail"};
constexpr std::array kRendezvousTypes = {"welcome",      "waiting", "start_round", "preempt",
                                         "stop_round",   "job_end", "refused",     "inspect",
                                         "hang_verdict", "record",  "tail_wanted"};
static_assert(kAgentTypes.size() == variants::variant_size_v<AgentMessage>);
static_assert(kRendezvousTypes.size() == variants::variant_size_v<RendezvousMessage>);

// Returns as many of the last `lines` as the bounds allow.
std::span<const std::string> last_that_fit(std::span<const std::string> lines,
                                           std::size_t max_count, std::size_t max_bytes) {
  std::size_t count = 0, num_bytes = 0;
  while (count < std::min(lines.size(), max_count)) {
    num_bytes += lines[lines.size() - count - 1].size();
    if (num_bytes > max_bytes) break;
    ++count;
  }
  return lines.last(count);
}

// Handles a number that older versions don't send. It is left out if it is 0.
template <typename Number, typename Fields>
void unless_zero(const char* name, Number& number, std::int64_t most, Fields& fields) {
  if (fields.wants(name, number > 0)) fields.number(name, number, 0, most);
}

template <typename Self>
concept NothingButItsRound = MaybeConst<Self, WorkersSucceeded> || MaybeConst<Self, WorkersLeft> ||
    MaybeConst<Self, RecordsWanted> || MaybeConst<Self, Record>;
template <typename Self>
concept Nothing = MaybeConst<Self, Ack> || MaybeConst<Self, CutOff>;

}  // namespace

// ---- the parts of messages ----

template <MaybeConst<JobTimeouts> Self, typename Fields>
void each_json(Self& timeouts, Fields& fields) {
  fields.time("join_ms", timeouts.join);
  fields.time("last_call_ms", timeouts.last_call);
  fields.time("keep_alive_ms", timeouts.keep_alive);
  fields.time("start_ms", timeouts.start);
  fields.time("stop_grace_ms", timeouts.shutdown);
  fields.time("exit_barrier_ms", timeouts.exit_barrier);
  fields.time("max_restart_delay_ms", timeouts.max_restart_delay);
  fields.time("replacement_ms", timeouts.replacement);
  if (fields.wants("rendezvous_lost_ms", true)) {
    fields.time("rendezvous_lost_ms", timeouts.rendezvous_lost);
  }
}

template <MaybeConst<WorkerFailure> Self, typename Fields>
void each_json(Self& failure, Fields& fields) {
  fields.number("global_rank", failure.global_rank, -1, kMaxInt);
  fields.number("local_rank", failure.local_rank, -1, kMaxInt);
  fields.number("node_rank", failure.node_rank, -1, kMaxInt);
  fields.shown("host", failure.host, kMaxNameBytes);
  fields.number("pid", failure.pid, 0, kMaxInt64);
  fields.number("exit_code", failure.exit_code, 0, 255);
  fields.number("signal", failure.signal_number, 0, 127);
  fields.shown("note", failure.note);
  if constexpr (Fields::kReads) {
    fields.texts("last_lines", failure.last_lines, kMaxLastLines, kMaxLineBytes);
  } else {
    const std::size_t skip = std::max(failure.last_lines.size(), kMaxLastLines) - kMaxLastLines;
    fields.texts("last_lines", std::span(failure.last_lines).subspan(skip), kMaxLastLines,
                 kMaxLineBytes);
  }
  fields.boolean("hung", failure.hung);
  fields.boolean("lasting", failure.lasting);
  fields.number("died_at_us", failure.died_at_us, 0, kMaxMicroseconds);
  fields.number("clock_error_us", failure.clock_error_us, 0, kMaxMicroseconds);
  fields.number("ended_at", failure.ended_at, 0, kMaxMicroseconds);
  fields.texts("traceback", failure.traceback, kMaxTracebackLines, kMaxLineBytes);
  fields.shown("error_file", failure.error_file);
  fields.shown("error_fields", failure.error_fields, kMaxErrorFieldsBytes);
  fields.shown("out_of_memory", failure.out_of_memory);
  unless_zero("memory_peak_bytes", failure.memory_peak_bytes, kMaxInt64, fields);
  unless_zero("memory_limit_bytes", failure.memory_limit_bytes, kMaxInt64, fields);
  if (fields.wants("operation", true)) fields.shown("operation", failure.operation, kMaxLineBytes);
  if (fields.wants("flight_recorder", true)) {
    fields.shown("flight_recorder", failure.flight_recorder);
  }
  if (fields.wants("start", !failure.start.empty())) fields.shown("start", failure.start);
  if (fields.wants("gpu_errors", !failure.gpu_errors.empty())) {
    fields.shown("gpu_errors", failure.gpu_errors, kMaxLineBytes);
  }
  fields.texts("log_files", failure.log_files, kMaxLogFiles, kMaxShownBytes);
}

template <MaybeConst<RankReport> Self, typename Fields>
void each_json(Self& report, Fields& fields) {
  fields.number("global_rank", report.global_rank, 0, kMaxInt);
  fields.number("local_rank", report.local_rank, 0, kMaxInt);
  fields.bounded("pid", report.pid, 0, kMaxInt64);
  fields.boolean("foreign", report.foreign);
  fields.line("phase", report.phase, kMaxWordBytes);
  fields.counter("step", report.step);
  fields.counter("steps_done", report.steps_done);
  fields.counter("collectives_begun", report.collectives_begun);
  fields.counter("collectives_done", report.collectives_done);
  fields.line("collective", report.collective, kMaxWordBytes);
  if (fields.wants("operation", !report.operation.empty())) {
    fields.line("operation", report.operation, kMaxOperationBytes);
    fields.time("operation_ms", report.operation_time);
  }
  if (fields.wants("shared_collectives_done", report.shared_collectives_done)) {
    fields.counter("shared_collectives_done", *report.shared_collectives_done);
  }
  fields.time("quiet_ms", report.quiet);
  fields.time("limit_ms", report.limit);
  fields.time("limit_if_blocked_ms", report.limit_if_blocked);
  fields.time("unmoved_ms", report.unmoved);
  if (fields.wants("limit_if_working_ms", report.limit_if_working)) {
    fields.time("limit_if_working_ms", *report.limit_if_working);
  }
  auto activity = static_cast<int>(report.activity);
  fields.number("activity", activity, 0, static_cast<int>(RankActivity::kStopped));
  if constexpr (Fields::kReads) report.activity = static_cast<RankActivity>(activity);
  fields.bounded("cpu_percent", report.cpu_percent, 0, kMaxInt);
  fields.line("work", report.work, kMaxWorkBytes);
  fields.line("state", report.state, kMaxWordBytes);
  fields.line("wchan", report.wchan, kMaxWchanBytes);
  fields.line("call", report.call, kMaxCallBytes);
  fields.lines("frames", report.frames, kMaxFrames, kMaxFrameBytes);
  fields.line("note", report.note, kMaxNoteBytes);
  if (fields.wants("has_debugger", report.has_debugger)) {
    fields.boolean("has_debugger", report.has_debugger);
  }
}

template <MaybeConst<RankStepTime> Self, typename Fields>
void each_json(Self& time, Fields& fields) {
  fields.number("global_rank", time.global_rank, 0, kMaxInt);
  fields.bounded("step_us", time.step, kMaxStepMicroseconds);
  fields.bounded("own_us", time.own, kMaxStepMicroseconds);
}

template <MaybeConst<TrainingStatus> Self, typename Fields>
void each_json(Self& status, Fields& fields) {
  fields.line("phase", status.phase, kMaxWordBytes);
  fields.counter("step", status.step);
  fields.bounded("num_ranks", status.num_ranks, 0, kMaxInt);
  fields.finite("loss", status.loss);
  fields.finite("samples_per_second", status.samples_per_second);
  unless_zero("num_nan", status.num_nan, kMaxInt, fields);
  if (fields.wants("step_parts", status.steps.num_ranks > 0)) {
    fields.object("step_parts", status.steps);
  }
  if (fields.wants("framework", !status.framework.empty())) {
    fields.line("framework", status.framework, kMaxFrameworkBytes);
  }
  if (fields.wants("skipped_steps", status.skipped_steps > 0)) {
    fields.counter("skipped_steps", status.skipped_steps);
  }
  if (fields.wants("gpu_peak_bytes", status.gpu_peak_bytes > 0)) {
    fields.counter("gpu_peak_bytes", status.gpu_peak_bytes);
    fields.bounded("gpu_peak_rank", status.gpu_peak_rank, -1, kMaxInt);
  }
  if (fields.wants("has_samples", !status.has_samples)) {
    fields.boolean("has_samples", status.has_samples);
  }
}

// ---- agents' messages ----

template <Nothing Self, typename Fields>
void each_json(Self&, Fields&) {}

template <NothingButItsRound Self, typename Fields>
void each_json(Self& message, Fields& fields) {
  fields.counter("round", message.round);
}

template <MaybeConst<Join> Self, typename Fields>
void each_json(Self& join, Fields& fields) {
  fields.number("version", join.version, 0, kMaxInt);
  if constexpr (Fields::kReads) join.oldest_version = join.version;
  if (fields.wants("oldest_version", true)) {
    fields.number("oldest_version", join.oldest_version, 0, join.version);
  }
  // Another version may have other fields, so none is read. The rendezvous refuses the version.
  if (Fields::kReads && !common_version(join)) return;
  fields.text("run_id", join.run_id);
  fields.text("instance", join.instance);
  fields.text("session", join.session);
  if (Fields::kReads && (join.run_id.empty() || join.instance.empty())) {
    throw Error(ErrorCode::kProtocol, "message \"join\": \"run_id\" or \"instance\" is empty");
  }
  fields.object("settings", join.settings);
  fields.object("timeouts", join.timeouts);
  if (fields.wants("node_rank", join.node_rank)) {
    fields.number("node_rank", *join.node_rank, -1, kMaxInt);
  }
  fields.number("num_workers", join.num_workers, 1, kMaxWorkersPerNode);
  fields.shown("host", join.host, kMaxNameBytes);
  if (fields.wants("unfit", !join.unfit.empty())) fields.shown("unfit", join.unfit);
  fields.number("pid", join.pid, 0, kMaxInt64);
  fields.text("advertised_addr", join.advertised_addr);
  fields.number("store_port", join.store_port, 0, 65'535);
  fields.shown("topology", join.topology, kMaxLabelBytes);
  fields.shown("program", join.program, kMaxLabelBytes);
  fields.shown("role", join.role, kMaxLabelBytes);
  fields.number("user_id", join.user_id, 0, std::numeric_limits<std::uint32_t>::max());
  if (fields.wants("confirmed", join.confirmed != 0)) fields.counter("confirmed", join.confirmed);
}

template <MaybeConst<WorkersRunning> Self, typename Fields>
void each_json(Self& message, Fields& fields) {
  fields.counter("round", message.round);
  unless_zero("warming_us", message.warming_us, kMaxMicroseconds, fields);
  unless_zero("num_warm", message.num_warm, kMaxWorkersPerNode, fields);
  if (fields.wants("cold", !message.cold.empty())) fields.shown("cold", message.cold);
}

template <MaybeConst<WorkerFailed> Self, typename Fields>
void each_json(Self& message, Fields& fields) {
  fields.counter("round", message.round);
  fields.object("failure", message.failure);
}

template <MaybeConst<WorkersStopped> Self, typename Fields>
void each_json(Self& message, Fields& fields) {
  fields.counter("round", message.round);
  fields.number("store_port", message.store_port, 0, 65'535);
  fields.counter("last_step", message.last_step);
  fields.number("gone_at_us", message.gone_at_us, 0, kMaxMicroseconds);
  unless_zero("kept", message.kept, kMaxWorkersPerNode, fields);
}

template <MaybeConst<FirstStep> Self, typename Fields>
void each_json(Self& message, Fields& fields) {
  fields.counter("round", message.round);
  fields.counter("step", message.step);
  unless_zero("connecting_us", message.connecting_us, kMaxMicroseconds, fields);
}

template <MaybeConst<WorkerRequest> Self, typename Fields>
void each_json(Self& request, Fields& fields) {
  using Kind = WorkerRequest::Kind;
  fields.counter("round", request.round);
  std::string kind(request.kind == Kind::kExcludeNode ? kExcludeNode : kStopJob);
  fields.text("request", kind);
  if constexpr (Fields::kReads) {
    if (kind != kExcludeNode && kind != kStopJob) {
      throw_error(ErrorCode::kProtocol, "message \"worker_request\": \"request\" is \"",
                  clean_utf8(kind, 32), "\"");
    }
    request.kind = kind == kExcludeNode ? Kind::kExcludeNode : Kind::kStopJob;
  }
  const bool may_be_agent = request.kind == Kind::kExcludeNode;
  fields.number("global_rank", request.global_rank, may_be_agent ? kAgentItself : 0, kMaxInt);
  fields.shown("reason", request.reason);
  fields.number("exit_code", request.exit_code, 1, 255);
}

template <MaybeConst<Preempted> Self, typename Fields>
void each_json(Self& message, Fields& fields) {
  using Kind = Preempted::Kind;
  bool is_time_limit = message.kind == Kind::kTimeLimit;
  fields.boolean("time_limit", is_time_limit);
  if constexpr (Fields::kReads) message.kind = is_time_limit ? Kind::kTimeLimit : Kind::kNode;
  fields.shown("reason", message.reason);
  fields.time("notice_ms", message.notice);
  unless_zero("signal", message.signal_number, 127, fields);
}

template <MaybeConst<Leave> Self, typename Fields>
void each_json(Self& leave, Fields& fields) {
  fields.shown("reason", leave.reason);
  fields.number("exit_code", leave.exit_code, 0, 255);
  fields.boolean("alone", leave.alone);
  fields.boolean("everyone", leave.everyone);
}

template <MaybeConst<Stalled> Self, typename Fields>
void each_json(Self& stalled, Fields& fields) {
  fields.counter("round", stalled.round);
  fields.object("report", stalled.report);
}

template <MaybeConst<Inspection> Self, typename Fields>
void each_json(Self& inspection, Fields& fields) {
  fields.counter("round", inspection.round);
  fields.counter("inquiry", inspection.inquiry);
  fields.objects("ranks", inspection.ranks, kMaxReportedRanks);
}

template <MaybeConst<StepTimes> Self, typename Fields>
void each_json(Self& times, Fields& fields) {
  fields.counter("round", times.round);
  fields.objects("ranks", times.ranks, kMaxReportedRanks);
  if (fields.wants("training", times.training)) fields.object("training", *times.training);
  if (fields.wants("monitor", times.monitor)) fields.object("monitor", *times.monitor);
}

template <MaybeConst<Tail> Self, typename Fields>
void each_json(Self& tail, Fields& fields) {
  fields.counter("request", tail.request);
  if constexpr (Fields::kReads) {
    fields.lines("lines", tail.lines, kMaxTailLines, kMaxLineBytes);
    const auto fitting = last_that_fit(tail.lines, kMaxTailLines, kMaxTailBytes);
    tail.lines.erase(tail.lines.begin(), tail.lines.end() - std::ssize(fitting));
  } else {
    fields.lines("lines", last_that_fit(tail.lines, kMaxTailLines, kMaxTailBytes), kMaxTailLines,
                 kMaxLineBytes);
  }
  fields.shown("note", tail.note);
}

// ---- the rendezvous' messages ----

template <MaybeConst<Welcome> Self, typename Fields>
void each_json(Self& welcome, Fields& fields) {
  fields.number("version", welcome.version, 0, kMaxInt);
  // Another version may have other fields. The agent reports the version and ends.
  const bool is_known =
      welcome.version >= kOldestProtocolVersion && welcome.version <= kProtocolVersion;
  if (Fields::kReads && !is_known) return;
  fields.text("session", welcome.session);
  fields.text("your_addr", welcome.your_addr);
  fields.time("keep_alive_ms", welcome.keep_alive);
  fields.boolean("embedded", welcome.embedded);
  fields.number("clock_us", welcome.clock_us, 0, kMaxMicroseconds);
}

template <MaybeConst<Waiting> Self, typename Fields>
void each_json(Self& waiting, Fields& fields) {
  fields.number("have_nodes", waiting.have_nodes, 0, kMaxNodes);
  fields.number("need_nodes", waiting.need_nodes, 0, kMaxNodes);
  fields.shown("note", waiting.note);
  fields.boolean("spare", waiting.spare);
}

template <MaybeConst<StartRound> Self, typename Fields>
void each_json(Self& start, Fields& fields) {
  fields.counter("round", start.round);
  fields.number("restart_count", start.restart_count, 0, kMaxInt);
  fields.number("node_rank", start.node_rank, 0, kMaxNodes);
  fields.number("num_nodes", start.num_nodes, 1, kMaxNodes);
  fields.number("first_global_rank", start.first_global_rank, 0, kMaxInt);
  fields.number("world_size", start.world_size, 1, kMaxInt);
  fields.number("first_role_rank", start.first_role_rank, 0, kMaxInt);
  fields.number("role_world_size", start.role_world_size, 1, kMaxInt);
  fields.text("node_addr", start.node_addr);
  fields.text("master_node_addr", start.master_node_addr);
  fields.text("master_addr", start.master_addr);
  fields.number("master_port", start.master_port, 0, 65'535);
  fields.boolean("serve_store", start.serve_store);
  if (fields.wants("in_place", start.in_place)) fields.boolean("in_place", start.in_place);
}

template <MaybeConst<Preempt> Self, typename Fields>
void each_json(Self& message, Fields& fields) {
  fields.counter("round", message.round);
  fields.shown("reason", message.reason);
  fields.time("notice_ms", message.notice);
  unless_zero("signal", message.signal_number, 127, fields);
}

template <MaybeConst<StopRound> Self, typename Fields>
void each_json(Self& stop, Fields& fields) {
  fields.counter("round", stop.round);
  fields.shown("reason", stop.reason);
  if (fields.wants("keep_ms", stop.keep.count() > 0)) fields.time("keep_ms", stop.keep);
  if (fields.wants("last", stop.last)) fields.boolean("last", stop.last);
}

template <MaybeConst<JobEnd> Self, typename Fields>
void each_json(Self& end, Fields& fields) {
  fields.number("exit_code", end.exit_code, 0, 255);
  fields.shown("reason", end.reason);
  if (fields.wants("first_failure", end.first_failure)) {
    fields.object("first_failure", *end.first_failure);
  }
  fields.counter("rounds", end.rounds);
  fields.shown("summary", end.summary);
  fields.texts("victims", end.victims, kMaxVictims, kMaxShownBytes);
  // The bound has room for a "…", so that a text that fits is never cut.
  std::string ledger = clean_utf8(end.ledger, kMaxLedgerBytes + 3);
  if (fields.wants("ledger", !ledger.empty() && ledger.size() <= kMaxLedgerBytes)) {
    fields.whole("ledger", ledger);
    if constexpr (Fields::kReads) end.ledger = std::move(ledger);
  }
  if (fields.wants("excluded", !end.excluded.empty())) {
    fields.texts("excluded", end.excluded, kMaxShownNodes, kMaxShownBytes);
  }
}

template <MaybeConst<Refused> Self, typename Fields>
void each_json(Self& refused, Fields& fields) {
  fields.shown("message", refused.message);
  fields.number("exit_code", refused.exit_code, 0, 255);
  fields.boolean("again", refused.again);
}

template <MaybeConst<Inspect> Self, typename Fields>
void each_json(Self& inspect, Fields& fields) {
  fields.counter("round", inspect.round);
  fields.counter("inquiry", inspect.inquiry);
}

template <MaybeConst<HangVerdict> Self, typename Fields>
void each_json(Self& verdict, Fields& fields) {
  fields.counter("round", verdict.round);
  fields.shown("text", verdict.text);
  fields.texts("lines", verdict.lines, kMaxVerdictLines, kMaxLineBytes);
}

template <MaybeConst<TailWanted> Self, typename Fields>
void each_json(Self& wanted, Fields& fields) {
  fields.counter("round", wanted.round);
  fields.counter("request", wanted.request);
  fields.number("global_rank", wanted.global_rank, 0, kMaxInt);
  bool is_stack = wanted.kind == TailKind::kStack;
  if (fields.wants("stack", is_stack)) fields.boolean("stack", is_stack);
  if constexpr (Fields::kReads) wanted.kind = is_stack ? TailKind::kStack : TailKind::kOutput;
}

// ---- envelopes ----

const char* type_of(const AgentMessage& message) { return kAgentTypes.at(message.index()); }
const char* type_of(const RendezvousMessage& message) {
  return kRendezvousTypes.at(message.index());
}

namespace {

// Returns a default message of that type; nullopt: there is no such type.
template <typename Message, std::size_t Index = 0>
std::optional<Message> default_message(std::string_view type) {
  if constexpr (Index == variants::variant_size_v<Message>) {
    return std::nullopt;
  } else {
    Message candidate{variants::in_place_index_t<Index>{}};
    if (type != type_of(candidate)) return default_message<Message, Index + 1>(type);
    return candidate;
  }
}

template <typename Message>
std::string encode_envelope(const Envelope<Message>& envelope) {
  JsonWriter writer;
  writer.whole("type", type_of(envelope.message));
  writer.counter("seq", envelope.seq);
  writer.counter("ack", envelope.ack);
  variants::visit([&](const auto& message) { each_json(message, writer); }, envelope.message);
  return json::serialize(writer.take());
}

template <typename Message>
Envelope<Message> decode_envelope(std::string_view input) {
  if (input.size() > kMaxMessageBytes) {
    throw_error(ErrorCode::kProtocol, "a control message of ", input.size(),
                " bytes; the limit is ", kMaxMessageBytes);
  }
  json::error_code error;
  // Thousands of agents send hundreds of fields a second, so fields are parsed without allocations.
  std::array<unsigned char, kParsedBytes> buffer;
  json::monotonic_resource memory(buffer.data(), buffer.size());
  const json::value value = parsed_json(input, error, kMaxDepth, &memory);
  if (error) throw_error(ErrorCode::kProtocol, "not a control message: ", json_problem(error));
  const auto* object = value.if_object();
  if (object == nullptr) throw Error(ErrorCode::kProtocol, "not a control message: no object");

  const std::string type = JsonFields(*object, "control message").text("type");
  JsonReader reader(JsonFields(*object, "message \"" + clean_utf8(type, 32) + "\""));
  Envelope<Message> envelope;
  reader.counter("seq", envelope.seq);
  reader.counter("ack", envelope.ack);
  if constexpr (std::is_same_v<Message, RendezvousMessage>) {
    if (type == "claim" || (type == "welcome" && reader.has("term"))) {
      envelope.message = Welcome{.version = kPairVersion};
      return envelope;
    }
  }
  auto message = default_message<Message>(type);
  if (!message) {
    throw_error(ErrorCode::kProtocol, "control message of unknown type \"", clean_utf8(type, 32),
                "\"");
  }
  variants::visit([&](auto& each) { each_json(each, reader); }, *message);
  envelope.message = std::move(*message);
  return envelope;
}

}  // namespace

std::optional<int> common_version(const Join& join) {
  return newest_in_both({join.oldest_version, join.version}, kProtocolVersions);
}

std::string encode(const AgentEnvelope& envelope) { return encode_envelope(envelope); }
std::string encode(const RendezvousEnvelope& envelope) { return encode_envelope(envelope); }

AgentEnvelope decode_agent_message(std::string_view input) {
  return decode_envelope<AgentMessage>(input);
}

RendezvousEnvelope decode_rendezvous_message(std::string_view input) {
  return decode_envelope<RendezvousMessage>(input);
}

// ---- kept messages ----

namespace {

json::object parse_kept(std::string_view text) {
  auto object = parse_object(text);
  if (!object) throw Error(ErrorCode::kProtocol, "no kept message");
  return std::move(*object);
}

// Adds to `kept` the fields that it lacks.
void complete(json::object& kept, const json::object& defaults) {
  for (const auto& [name, value] : defaults) {
    json::value* found = kept.if_contains(name);
    if (found == nullptr) {
      kept[name] = value;
    } else if (found->is_object() && value.is_object()) {
      complete(found->get_object(), value.get_object());
    }
  }
}

template <typename Wanted>
Wanted read_kept_agent_message(json::object kept) {
  complete(kept, parse_kept(encode(AgentEnvelope{0, 0, Wanted{}})));
  AgentEnvelope envelope = decode_agent_message(json::serialize(kept));
  auto* message = variants::get_if<Wanted>(&envelope.message);
  if (message == nullptr) {
    throw_error(ErrorCode::kProtocol, "it is no \"", type_of(AgentMessage(Wanted{})), '"');
  }
  return std::move(*message);
}

}  // namespace

Join read_kept_join(std::string_view text) {
  json::object kept = parse_kept(text);
  kept["version"] = kProtocolVersion;  // the ddprun that sent it may have another version by now
  kept["oldest_version"] = kProtocolVersion;
  return read_kept_agent_message<Join>(std::move(kept));
}

WorkerFailure read_kept_failure(std::string_view text) {
  return read_kept_agent_message<WorkerFailed>(parse_kept(text)).failure;
}

RendezvousMessage read_kept_message(std::string_view text) {
  json::object kept = parse_kept(text);
  const auto* type = kept.if_contains("type");
  const auto* name = type == nullptr ? nullptr : type->if_string();
  const auto message = name == nullptr
                           ? std::nullopt
                           : default_message<RendezvousMessage>({name->data(), name->size()});
  if (message) complete(kept, parse_kept(encode(RendezvousEnvelope{0, 0, *message})));
  // A default JobEnd has no first failure.
  json::value* failure = kept.if_contains("first_failure");
  if (failure != nullptr && failure->is_object()) {
    complete(failure->get_object(), json_of(WorkerFailure{}));
  }
  return decode_rendezvous_message(json::serialize(kept)).message;
}

}  // namespace ddprun::membership
