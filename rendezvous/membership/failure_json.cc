// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/failure_json.h"

#include <boost/json/array.hpp>
#include <limits>
#include <string_view>
#include <utility>

namespace ddprun::membership {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxLastLines = 20, kMaxTracebackLines = 24, kMaxLogFiles = 2;

}  // namespace

json::object failure_object(const WorkerFailure& failure) {
  json::object out;
  out["global_rank"] = failure.global_rank;
  out["local_rank"] = failure.local_rank;
  out["node_rank"] = failure.node_rank;
  out["host"] = clean_text(failure.host, kMaxNameBytes);
  out["pid"] = failure.pid;
  out["exit_code"] = failure.exit_code;
  out["signal"] = failure.signal_number;
  out["note"] = clean_text(failure.note, kMaxShownBytes);
  json::array lines;
  const auto& all = failure.last_lines;
  const std::size_t skip = all.size() > kMaxLastLines ? all.size() - kMaxLastLines : 0;
  for (std::size_t i = skip; i < all.size(); ++i)
    lines.push_back(clean_text(all[i], kMaxLineBytes));
  out["last_lines"] = std::move(lines);
  out["hung"] = failure.hung;
  out["lasting"] = failure.lasting;
  out["died_at_us"] = failure.died_at_us;
  out["clock_error_us"] = failure.clock_error_us;
  out["ended_at"] = failure.ended_at;
  json::array traceback;
  for (const std::string& line : failure.traceback) {
    if (traceback.size() < kMaxTracebackLines) traceback.push_back(clean_text(line, kMaxLineBytes));
  }
  out["traceback"] = std::move(traceback);
  out["error_file"] = clean_text(failure.error_file, kMaxShownBytes);
  out["error_fields"] = clean_text(failure.error_fields, kMaxErrorFieldsBytes);
  out["out_of_memory"] = clean_text(failure.out_of_memory, kMaxShownBytes);
  if (failure.memory_peak_bytes > 0) out["memory_peak_bytes"] = failure.memory_peak_bytes;
  if (failure.memory_limit_bytes > 0) out["memory_limit_bytes"] = failure.memory_limit_bytes;
  out["operation"] = clean_text(failure.operation, kMaxLineBytes);
  out["flight_recorder"] = clean_text(failure.flight_recorder, kMaxShownBytes);
  json::array files;
  for (const std::string& file : failure.log_files) {
    if (files.size() < kMaxLogFiles) files.push_back(clean_text(file, kMaxShownBytes));
  }
  out["log_files"] = std::move(files);
  return out;
}

WorkerFailure read_failure(const JsonFields& in) {
  WorkerFailure failure;
  failure.global_rank = in.small("global_rank", -1, kMaxInt);
  failure.local_rank = in.small("local_rank", -1, kMaxInt);
  failure.node_rank = in.small("node_rank", -1, kMaxInt);
  failure.host = in.clipped("host", kMaxNameBytes);
  failure.pid = in.integer("pid", 0, std::numeric_limits<std::int64_t>::max());
  failure.exit_code = in.small("exit_code", 0, 255);
  failure.signal_number = in.small("signal", 0, 127);
  failure.note = in.clipped("note", kMaxShownBytes);
  failure.last_lines = in.texts("last_lines", kMaxLastLines, kMaxLineBytes);
  failure.hung = in.boolean("hung");
  failure.lasting = in.boolean("lasting");
  failure.died_at_us = in.integer("died_at_us", 0, kMaxMicroseconds);
  failure.clock_error_us = in.integer("clock_error_us", 0, kMaxMicroseconds);
  failure.ended_at = in.integer("ended_at", 0, kMaxMicroseconds);
  failure.traceback = in.texts("traceback", kMaxTracebackLines, kMaxLineBytes);
  failure.error_file = in.clipped("error_file", kMaxShownBytes);
  failure.error_fields = in.clipped("error_fields", kMaxErrorFieldsBytes);
  failure.out_of_memory = in.clipped("out_of_memory", kMaxShownBytes);
  const auto bytes = [&in](const char* name) -> std::uint64_t {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    return in.has(name) ? static_cast<std::uint64_t>(in.integer(name, 0, kMost)) : 0;
  };
  failure.memory_peak_bytes = bytes("memory_peak_bytes");
  failure.memory_limit_bytes = bytes("memory_limit_bytes");
  if (in.has("operation")) failure.operation = in.clipped("operation", kMaxLineBytes);
  if (in.has("flight_recorder")) {
    failure.flight_recorder = in.clipped("flight_recorder", kMaxShownBytes);
  }
  failure.log_files = in.texts("log_files", kMaxLogFiles, kMaxShownBytes);
  return failure;
}

}  // namespace ddprun::membership
