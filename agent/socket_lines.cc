// SPDX-License-Identifier: Apache-2.0
#include "agent/socket_lines.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "common/error.h"
#include "common/json.h"
#include "common/progress_page.h"
#include "common/text.h"
#include "rendezvous/messages/json_fields.h"
#include "rendezvous/messages/reports.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;
using membership::clean_utf8;
using membership::JsonFields;

constexpr int kMaxDepth = 4;
constexpr int kMaxWorkers = 1 << 20;
constexpr std::int64_t kMostConnectingUs = 86'400'000'000;  // a day

std::string line_of(const JsonFields& fields, const char* name, std::size_t max_bytes) {
  return one_line(clean_utf8(fields.text(name), max_bytes));
}

OperationFailed operation_failed(const json::object& object, const JsonFields& fields) {
  constexpr std::size_t kMaxMissing = 64;
  OperationFailed failed;
  failed.code = line_of(fields, "code", 32);
  failed.operation = line_of(fields, "operation", 256);
  failed.size = fields.small("size", 0, kMaxWorkers);
  failed.waited_ms = fields.integer("waited_ms", 0, std::int64_t{1} << 50);
  failed.message = line_of(fields, "message", kMaxReasonBytes);
  failed.file = line_of(fields, "file", kMaxReasonBytes);
  const json::value* missing = object.if_contains("missing");
  if (missing == nullptr || !missing->is_array()) {
    throw Error(ErrorCode::kProtocol, "a worker's \"operation_failed\" has no array \"missing\"");
  }
  for (const json::value& rank : missing->as_array()) {
    const bool is_rank = rank.is_int64() && rank.as_int64() >= 0 && rank.as_int64() < kMaxWorkers;
    if (!is_rank || failed.missing.size() == kMaxMissing) {
      throw Error(ErrorCode::kProtocol, "a worker's \"operation_failed\" names what is no rank");
    }
    failed.missing.push_back(static_cast<int>(rank.as_int64()));
  }
  std::sort(failed.missing.begin(), failed.missing.end());
  return failed;
}

}  // namespace

WorkerLine parse_worker_line(std::string_view line) {
  const auto parsed = parse_object(line, kMaxDepth);
  if (!parsed) throw Error(ErrorCode::kProtocol, "a line is no JSON object");
  const json::object& object = *parsed;
  const std::string type = JsonFields(object, "a worker's message").text("type");
  const JsonFields fields(object, "a worker's message \"" + one_line(clean_utf8(type, 64)) + "\"");
  if (type == "hello") {
    return Hello{fields.small("version", 0, 1 << 30), fields.counter("round"),
                 fields.small("local_rank", 0, kMaxWorkers),
                 fields.has("observes") && fields.boolean("observes"),
                 fields.has("framework")
                     ? line_of(fields, "framework", membership::kMaxFrameworkBytes)
                     : ""};
  }
  if (type == "wait_for_place") return WaitForPlace{};
  if (type == "first_step") {
    // An older SDK reports only the step.
    return FirstStep{
        fields.counter("step"),
        fields.has("connecting_us") ? fields.integer("connecting_us", 0, kMostConnectingUs) : 0};
  }
  if (type == "exclude_node") return ExcludeNode{line_of(fields, "reason", kMaxReasonBytes)};
  if (type == "stop_job") {
    return StopJob{line_of(fields, "reason", kMaxReasonBytes),
                   fields.has("exit_code") ? fields.small("exit_code", 1, 255) : 1};
  }
  if (type == "operation_failed") return operation_failed(object, fields);
  if (type == "keeps_record") return KeepsRecord{};
  if (type == "recorded") {
    return Recorded{line_of(fields, "file", kMaxReasonBytes),
                    fields.has("number") ? fields.counter("number") : 0};
  }
  if (type == "offers_recovery") return OffersRecovery{};
  if (type == "recover") return AsksToRecover{};
  return UnknownLine{one_line(clean_utf8(type, 64))};
}

std::string welcome_line() {
  return json::serialize(json::object{{"type", "welcome"}, {"version", kProgressVersion}}) + "\n";
}

std::string refused_line(std::string_view reason) {
  return json::serialize(json::object{{"type", "refused"}, {"reason", reason}}) + "\n";
}

std::string dump_line(std::uint64_t number) {
  return json::serialize(json::object{{"type", "dump"}, {"number", number}}) + "\n";
}

std::string assign_line(const std::vector<std::string>& environment) {
  std::string text;
  for (const std::string& variable : environment)
    text.append(variable.c_str(), variable.size() + 1);
  return concat(R"({"type":"assign","bytes":)", text.size(), "}\n", text);
}

}  // namespace ddprun::agent
