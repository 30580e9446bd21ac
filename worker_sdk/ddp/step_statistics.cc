// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/step_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "common/text.h"

namespace ddprun {
namespace {

using std::chrono::nanoseconds;

// A part of a step, with its name in the JSON.
struct Part {
  const char* name;
  Distribution StepStatistics::*of_all;
  nanoseconds StepParts::*of_step;
};
constexpr Part kParts[] = {
    {"step", &StepStatistics::step, &StepParts::step},
    {"forward", &StepStatistics::forward, &StepParts::forward},
    {"backward", &StepStatistics::backward, &StepParts::backward},
    {"communication", &StepStatistics::communication, &StepParts::communication},
    {"exposed", &StepStatistics::exposed, &StepParts::exposed},
    {"loader", &StepStatistics::loader, &StepParts::loader}};

nanoseconds between(Clock::time_point begin, Clock::time_point end) {
  return std::max(nanoseconds{0}, std::chrono::duration_cast<nanoseconds>(end - begin));
}

// Returns the time while some bucket was under way. Buckets complete in the order of their launch.
nanoseconds communication_of(const IterationTrace& trace) {
  nanoseconds sum{0};
  Clock::time_point covered{};
  for (const auto& bucket : trace.buckets) {
    const Clock::time_point end =
        bucket.done_at_backward_end ? std::min(bucket.waited, trace.backward_end) : bucket.waited;
    sum += between(std::max(bucket.launched, covered), end);
    covered = std::max(covered, end);
  }
  return sum;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string milliseconds_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value * 1e3);
  return text;
}

}  // namespace

Distribution distribution_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const std::size_t count = values.size();
  Distribution result;
  result.median =
      count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(count);
  result.p95 = values[(count * 95 + 99) / 100 - 1];
  return result;
}

void StepRecorder::forward_begins(Clock::time_point at) {
  if (!forward_) forward_ = at;
}

std::optional<StepParts> StepRecorder::step_ends(const IterationTrace& trace) {
  const auto begun = std::exchange(forward_, std::nullopt);
  const Clock::duration waited = std::exchange(loader_, {});
  const auto before = std::exchange(previous_, begun ? trace.finished : previous_);
  if (num_steps_++ == 0 || !begun) return std::nullopt;
  StepParts step;
  step.step = before ? between(*before, trace.finished) : nanoseconds{0};
  step.forward = between(*begun, trace.first_ready);
  step.backward = between(trace.first_ready, trace.backward_end);
  step.communication = communication_of(trace);
  step.exposed = std::min(between(trace.backward_end, trace.finished), step.communication);
  step.loader = std::max(nanoseconds{0}, std::chrono::duration_cast<nanoseconds>(waited));
  bytes_ = 0;
  for (const auto& bucket : trace.buckets) bytes_ += bucket.size_bytes;
  step.bytes = bytes_;
  if (steps_.size() < kMaxSteps) {
    steps_.push_back(step);
  } else {
    steps_[(num_steps_ - 2) % kMaxSteps] = step;
  }
  return step;
}

StepStatistics StepRecorder::statistics() const {
  StepStatistics result;
  result.num_steps = steps_.size();
  for (const Part& part : kParts) {
    std::vector<double> values;
    for (const StepParts& step : steps_) {
      values.push_back(std::chrono::duration<double>(step.*part.of_step).count());
    }
    result.*part.of_all = distribution_of(std::move(values));
  }
  if (result.communication.mean > 0) {
    result.overlap = 1 - result.exposed.mean / result.communication.mean;
  }
  result.bytes_per_step = bytes_;
  return result;
}

std::string to_json(const StepStatistics& statistics) {
  std::string text = concat(R"({"num_steps":)", statistics.num_steps);
  for (const Part& part : kParts) {
    const Distribution& each = statistics.*part.of_all;
    text += concat(",\"", part.name, R"(":{"median":)", number(each.median), R"(,"mean":)",
                   number(each.mean), R"(,"p95":)", number(each.p95), "}");
  }
  return text + concat(R"(,"overlap":)", number(statistics.overlap), R"(,"bytes_per_step":)",
                       statistics.bytes_per_step, "}");
}

std::string describe(const StepStatistics& statistics) {
  std::string communication, traffic;
  if (statistics.bytes_per_step > 0) {
    char megabytes[32];
    std::snprintf(megabytes, sizeof megabytes, "; %.1f MB per step",
                  static_cast<double>(statistics.bytes_per_step) / 1e6);
    traffic = megabytes;
    communication = concat(", communication ", milliseconds_text(statistics.communication.median),
                           " of which ", milliseconds_text(statistics.exposed.median),
                           " exposed (overlap ", std::lround(statistics.overlap * 100), " %)");
  }
  return concat("step ", milliseconds_text(statistics.step.median), " ms (p95 ",
                milliseconds_text(statistics.step.p95), "): forward ",
                milliseconds_text(statistics.forward.median), ", backward ",
                milliseconds_text(statistics.backward.median), communication, ", data ",
                milliseconds_text(statistics.loader.median), traffic);
}

}  // namespace ddprun
