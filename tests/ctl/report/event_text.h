// SPDX-License-Identifier: Apache-2.0
// Lines of a job's events, for tests: one call each.
#pragma once

#include <cstdio>
#include <string>

#include "ctl/report/record_reader.h"

namespace ddprun::test {

inline constexpr char kBegan[] = "2026-11-26T03:00:00.000Z";

// `seconds` since kBegan, less than an hour. `keys`: R"("cause":"x")".
inline std::string event_text(const std::string& name, double seconds, const std::string& keys = "",
                              const std::string& host = "n0", int round = 1,
                              const std::string& job = "mine") {
  char time[40];
  std::snprintf(time, sizeof time, "2026-11-26T03:%02d:%06.3fZ", static_cast<int>(seconds) / 60,
                seconds - 60 * (static_cast<int>(seconds) / 60));
  return R"({"event":")" + name + R"(","time":")" + time + R"(","job":")" + job + R"(","host":")" +
         host + R"(","node_rank":0,"round":)" + std::to_string(round) +
         (keys.empty() ? "" : "," + keys) + "}";
}

inline report::Record empty_record(const std::string& job = "mine") {
  report::Record record;
  record.job = job;
  record.origin = report::parse_utc(kBegan).value();
  return record;
}

template <typename... Lines>
report::Record record_of(const Lines&... lines) {
  report::Record record = empty_record();
  report::RecordReader reader(record);
  reader.file({.path = "events.jsonl", .what = "events"});
  (reader.line(lines), ...);
  return record;
}

}  // namespace ddprun::test
