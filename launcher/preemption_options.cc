// SPDX-License-Identifier: Apache-2.0
#include "launcher/preemption_options.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/env_names.h"
#include "common/signal_names.h"
#include "common/text.h"
#include "common/wall_time.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

// These can't be caught, or have another meaning for every process.
constexpr std::array kNoWarning = {SIGKILL, SIGSTOP, SIGCHLD, SIGPIPE, SIGCONT,
                                   SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGABRT};

// These can't be caught, or catching one doesn't help, or ddprun uses them for something else.
constexpr std::array kUnusable = {SIGKILL, SIGSTOP, SIGCHLD, SIGPIPE, SIGSEGV,
                                  SIGBUS,  SIGFPE,  SIGILL,  SIGABRT, SIGXFSZ};

bool contains(const std::vector<int>& signals, int number) {
  return std::find(signals.begin(), signals.end(), number) != signals.end();
}

}  // namespace

std::string parse_preemption_signals(std::string_view text, PreemptionOptions& options) {
  options.signals.clear();
  if (text == "none") return {};
  while (!text.empty()) {
    const std::string_view name = take_until(text, ",");
    const auto number = parse_signal(name);
    if (!number || std::find(kNoWarning.begin(), kNoWarning.end(), *number) != kNoWarning.end()) {
      return "\"" + std::string(name) +
             "\" is no signal that can warn; e.g. SIGUSR1,SIGTERM, or none";
    }
    options.signals.push_back(*number);
  }
  return {};
}

std::string parse_preemption_notice(std::string_view text, PreemptionOptions& options) {
  const auto notice = parse_duration(text);
  if (!notice || notice->count() == 0) return "wants a duration (60, 2m)";
  options.notice = *notice;
  return {};
}

std::string parse_time_limit(std::string_view text, PreemptionOptions& options) {
  options.time_limit_is_slurms = text == "auto";
  options.time_limit.reset();
  if (options.time_limit_is_slurms) return {};
  options.time_limit = parse_duration(text);
  const bool is_time = options.time_limit && options.time_limit->count() > 0;
  return is_time ? "" : "wants a duration (3600, 90m, 1-12:00:00) or auto";
}

std::string resolve_time_limit(PreemptionOptions& options, const Environment& environment,
                               std::int64_t now) {
  if (!options.time_limit_is_slurms) return {};
  const auto text = find_variable(environment, env::kSlurmJobEndTime);
  const auto end = text ? parse_decimal(*text) : std::nullopt;
  if (!end) {
    return "--time-limit=auto: " + std::string(env::kSlurmJobEndTime) +
           (text ? "=" + *text + " is no time" : " is not set; give a duration");
  }
  const auto left = static_cast<std::int64_t>(*end) - now;
  if (left <= 0) {
    return "--time-limit=auto: the job's end, " + std::string(env::kSlurmJobEndTime) + "=" + *text +
           ", has passed";
  }
  if (std::chrono::seconds(left) <= options.notice) {
    return "--time-limit=auto: only " + std::to_string(left) + " s are left until " +
           std::string(env::kSlurmJobEndTime) + "=" + *text +
           ", and the workers would be asked to leave " +
           std::to_string(options.notice.count() / 1000) +
           " s before that (--preemption-notice): there is no time to begin";
  }
  options.time_limit = std::chrono::seconds(left);
  return {};
}

int signal_for_workers(int number) {
  return contains(HandledSignals().numbers, number) ? SIGUSR1 : number;
}

std::string parse_handled_signals(std::string_view text, HandledSignals& handled) {
  HandledSignals result;
  result.text = text;
  result.numbers.clear();
  for (const std::string_view part : parts_between(text, ',')) {
    const std::string_view name = trimmed(part);
    const auto number = parse_signal(name);
    if (!number || std::find(kUnusable.begin(), kUnusable.end(), *number) != kUnusable.end()) {
      return "\"" + std::string(name) + "\" is no signal that can be handled";
    }
    if (!contains(result.numbers, *number)) result.numbers.push_back(*number);
  }
  handled = std::move(result);
  return {};
}

std::string settle_signals(bool handled_given, bool warnings_given, HandledSignals& handled,
                           PreemptionOptions& preemption) {
  for (const int number : std::vector<int>(handled.numbers)) {
    if (!contains(preemption.signals, number)) continue;
    if (handled_given && warnings_given) {
      return "--signals-to-handle: " + signal_name(number) +
             " is in --preemption-signals, too: it can't both stop the job and warn";
    }
    std::erase(handled_given ? preemption.signals : handled.numbers, number);
  }
  return {};
}

}  // namespace ddprun::launcher
