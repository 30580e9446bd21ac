// SPDX-License-Identifier: Apache-2.0
#include "agent/worker_line.h"

#include <boost/json.hpp>

#include "common/error.h"
#include "common/log.h"
#include "common/progress_page.h"
#include "rendezvous/membership/json_fields.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;
using membership::clean_utf8;
using membership::JsonFields;

constexpr int kMaxDepth = 4;
constexpr int kMaxWorkers = 1 << 20;

json::object parse_object(std::string_view line) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::error_code error;
  json::value root = json::parse({line.data(), line.size()}, error, {}, options);
  if (error || !root.is_object()) throw Error(ErrorCode::kProtocol, "a line is no JSON object");
  return std::move(root.as_object());
}

std::string reason_of(const JsonFields& fields) {
  return one_line(clean_utf8(fields.text("reason"), kMaxReasonBytes));
}

}  // namespace

WorkerLine parse_worker_line(std::string_view line) {
  const json::object object = parse_object(line);
  const std::string type = JsonFields(object, "a worker's message").text("type");
  const JsonFields fields(object, "a worker's message \"" + one_line(clean_utf8(type, 64)) + "\"");
  if (type == "hello") {
    return Hello{fields.small("version", 0, 1 << 30), fields.counter("round"),
                 fields.small("local_rank", 0, kMaxWorkers)};
  }
  if (type == "wait_for_place") return WaitForPlace{};
  if (type == "first_step") return FirstStep{fields.counter("step")};
  if (type == "exclude_node") return ExcludeNode{reason_of(fields)};
  if (type == "stop_job") {
    return StopJob{reason_of(fields),
                   fields.has("exit_code") ? fields.small("exit_code", 1, 255) : 1};
  }
  return UnknownLine{one_line(clean_utf8(type, 64))};
}

std::string welcome_line() {
  return json::serialize(json::object{{"type", "welcome"}, {"version", kProgressVersion}}) + "\n";
}

std::string refused_line(std::string_view reason) {
  return json::serialize(json::object{{"type", "refused"}, {"reason", reason}}) + "\n";
}

std::string assign_line(const std::vector<std::string>& environment) {
  std::string text;
  for (const std::string& variable : environment)
    text.append(variable.c_str(), variable.size() + 1);
  return concat(R"({"type":"assign","bytes":)", text.size(), "}\n", text);
}

}  // namespace ddprun::agent
