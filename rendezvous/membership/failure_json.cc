// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/failure_json.h"

#include <boost/json/array.hpp>
#include <limits>
#include <string_view>
#include <utility>

namespace ddprun::membership {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMaxMicroseconds = std::int64_t{1} << 53;
constexpr std::size_t kMaxLastLines = 20;
constexpr int kMaxInt = std::numeric_limits<int>::max();

json::string text(std::string_view value, std::size_t max_bytes) {
  const std::string clean = clean_utf8(value, max_bytes);
  return json::string(clean);
}

}  // namespace

json::object failure_object(const WorkerFailure& failure) {
  json::object out;
  out["global_rank"] = failure.global_rank;
  out["local_rank"] = failure.local_rank;
  out["node_rank"] = failure.node_rank;
  out["host"] = text(failure.host, kMaxNameBytes);
  out["pid"] = failure.pid;
  out["exit_code"] = failure.exit_code;
  out["signal"] = failure.signal_number;
  out["note"] = text(failure.note, kMaxShownBytes);
  json::array lines;
  const auto& all = failure.last_lines;
  const std::size_t skip = all.size() > kMaxLastLines ? all.size() - kMaxLastLines : 0;
  for (std::size_t i = skip; i < all.size(); ++i) lines.push_back(text(all[i], kMaxLineBytes));
  out["last_lines"] = std::move(lines);
  out["hung"] = failure.hung;
  out["died_at_us"] = failure.died_at_us;
  out["clock_error_us"] = failure.clock_error_us;
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
  failure.died_at_us = in.integer("died_at_us", 0, kMaxMicroseconds);
  failure.clock_error_us = in.integer("clock_error_us", 0, kMaxMicroseconds);
  return failure;
}

}  // namespace ddprun::membership
