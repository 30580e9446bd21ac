// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/rank_report_json.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <limits>
#include <string_view>

namespace ddprun::membership {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxWordBytes = 32;  // phase, state, kind of collective
constexpr std::size_t kMaxWchanBytes = 64;
constexpr std::size_t kMaxWorkBytes = 128;
constexpr std::size_t kMaxNoteBytes = 512;
constexpr std::int64_t kMaxStepMicroseconds = std::int64_t{1} << 50;

std::string read_text(const JsonFields& in, std::string_view name, std::size_t max_bytes) {
  return clean_utf8(in.text(name), max_bytes);
}

}  // namespace

json::object rank_report_object(const RankReport& report) {
  json::object out;
  out["global_rank"] = report.global_rank;
  out["local_rank"] = report.local_rank;
  out["pid"] = std::max<std::int64_t>(0, report.pid);
  out["foreign"] = report.foreign;
  out["phase"] = line_text(report.phase, kMaxWordBytes);
  out["step"] = counter_value(report.step);
  out["steps_done"] = counter_value(report.steps_done);
  out["collectives_begun"] = counter_value(report.collectives_begun);
  out["collectives_done"] = counter_value(report.collectives_done);
  out["collective"] = line_text(report.collective, kMaxWordBytes);
  if (!report.operation.empty()) {
    out["operation"] = line_text(report.operation, kMaxOperationBytes);
    out["operation_ms"] = time_value(report.operation_time);
  }
  out["quiet_ms"] = time_value(report.quiet);
  out["limit_ms"] = time_value(report.limit);
  out["limit_if_blocked_ms"] = time_value(report.limit_if_blocked);
  if (report.limit_if_working) out["limit_if_working_ms"] = time_value(*report.limit_if_working);
  out["activity"] = static_cast<int>(report.activity);
  out["cpu_percent"] = std::max(0, report.cpu_percent);
  out["work"] = line_text(report.work, kMaxWorkBytes);
  out["state"] = line_text(report.state, kMaxWordBytes);
  out["wchan"] = line_text(report.wchan, kMaxWchanBytes);
  out["call"] = line_text(report.call, kMaxCallBytes);
  json::array frames;
  for (const std::string& frame : report.frames) {
    if (frames.size() < kMaxFrames) frames.push_back(line_text(frame, kMaxFrameBytes));
  }
  out["frames"] = std::move(frames);
  out["note"] = line_text(report.note, kMaxNoteBytes);
  return out;
}

RankReport read_rank_report(const JsonFields& in) {
  RankReport report;
  report.global_rank = in.small("global_rank", 0, kMaxInt);
  report.local_rank = in.small("local_rank", 0, kMaxInt);
  report.pid = in.integer("pid", 0, std::numeric_limits<std::int64_t>::max());
  report.foreign = in.boolean("foreign");
  report.phase = read_text(in, "phase", kMaxWordBytes);
  report.step = in.counter("step");
  report.steps_done = in.counter("steps_done");
  report.collectives_begun = in.counter("collectives_begun");
  report.collectives_done = in.counter("collectives_done");
  report.collective = read_text(in, "collective", kMaxWordBytes);
  if (in.has("operation")) {
    report.operation = read_text(in, "operation", kMaxOperationBytes);
    report.operation_time = in.time("operation_ms");
  }
  report.quiet = in.time("quiet_ms");
  report.limit = in.time("limit_ms");
  report.limit_if_blocked = in.time("limit_if_blocked_ms");
  if (in.has("limit_if_working_ms")) report.limit_if_working = in.time("limit_if_working_ms");
  report.activity = static_cast<RankActivity>(in.small("activity", 0, 2));
  report.cpu_percent = in.small("cpu_percent", 0, kMaxInt);
  report.work = read_text(in, "work", kMaxWorkBytes);
  report.state = read_text(in, "state", kMaxWordBytes);
  report.wchan = read_text(in, "wchan", kMaxWchanBytes);
  report.call = read_text(in, "call", kMaxCallBytes);
  report.frames = in.texts("frames", kMaxFrames, kMaxFrameBytes);
  for (std::string& frame : report.frames) frame = clean_utf8(frame, kMaxFrameBytes);
  report.note = read_text(in, "note", kMaxNoteBytes);
  return report;
}

json::object step_time_object(const RankStepTime& time) {
  json::object out;
  out["global_rank"] = time.global_rank;
  const auto bounded = [](std::chrono::microseconds value) {
    return std::clamp<std::int64_t>(value.count(), 0, kMaxStepMicroseconds);
  };
  out["step_us"] = bounded(time.step);
  out["own_us"] = bounded(time.own);
  return out;
}

RankStepTime read_step_time(const JsonFields& in) {
  RankStepTime time;
  time.global_rank = in.small("global_rank", 0, kMaxInt);
  time.step = std::chrono::microseconds(in.integer("step_us", 0, kMaxStepMicroseconds));
  time.own = std::chrono::microseconds(in.integer("own_us", 0, kMaxStepMicroseconds));
  return time;
}

json::object training_object(const TrainingStatus& status) {
  json::object out;
  out["phase"] = line_text(status.phase, kMaxWordBytes);
  out["step"] = counter_value(status.step);
  out["num_ranks"] = std::max(0, status.num_ranks);
  const auto finite = [](double value) { return std::isfinite(value) ? value : 0.0; };
  out["loss"] = finite(status.loss);
  out["samples_per_second"] = finite(status.samples_per_second);
  if (status.num_nan > 0) out["num_nan"] = status.num_nan;
  if (status.steps.num_ranks > 0) out["step_parts"] = step_summary_object(status.steps);
  return out;
}

TrainingStatus read_training(const JsonFields& in) {
  TrainingStatus status;
  status.phase = read_text(in, "phase", kMaxWordBytes);
  status.step = in.counter("step");
  status.num_ranks = in.small("num_ranks", 0, kMaxInt);
  status.loss = in.real("loss");
  status.samples_per_second = in.real("samples_per_second");
  if (in.has("num_nan")) status.num_nan = in.small("num_nan", 0, kMaxInt);
  if (in.has("step_parts")) status.steps = read_step_summary(in.object("step_parts"));
  return status;
}

}  // namespace ddprun::membership
