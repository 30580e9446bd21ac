// SPDX-License-Identifier: Apache-2.0
#include "launcher/preemption_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>

#include "common/env_names.h"
#include "common/signal_names.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr double kMaxSeconds = 86'400'000;
// They can't be caught, or mean something else to every process.
constexpr std::array kUnusable = {SIGKILL, SIGSTOP, SIGCHLD, SIGPIPE, SIGCONT,
                                  SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGABRT};

std::optional<double> number(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end || !(value >= 0)) return std::nullopt;
  return value;
}

std::optional<double> seconds_of_clock(std::string_view text) {
  double days = 0, seconds = 0;
  if (const auto dash = text.find('-'); dash != std::string_view::npos) {
    const auto parsed = number(text.substr(0, dash));
    if (!parsed) return std::nullopt;
    days = *parsed;
    text.remove_prefix(dash + 1);
  }
  int parts = 0;
  for (bool more = true; more; ++parts) {
    const auto colon = text.find(':');
    more = colon != std::string_view::npos;
    const auto parsed = number(text.substr(0, colon));
    if (!parsed || parts == 3) return std::nullopt;
    seconds = seconds * 60 + *parsed;
    if (more) text.remove_prefix(colon + 1);
  }
  if (days > 0 && parts != 3) return std::nullopt;
  return days * 86'400 + seconds;
}

}  // namespace

std::optional<milliseconds> parse_duration(std::string_view text) {
  std::optional<double> seconds;
  if (text.find_first_of(":-") != std::string_view::npos) {
    seconds = seconds_of_clock(text);
  } else if (!text.empty()) {
    constexpr std::string_view kUnits = "smhd";
    constexpr std::array kSeconds = {1.0, 60.0, 3'600.0, 86'400.0};
    const auto unit = kUnits.find(text.back());
    const double factor = unit == std::string_view::npos ? 1 : kSeconds[unit];
    if (unit != std::string_view::npos) text.remove_suffix(1);
    seconds = number(text);
    if (seconds) *seconds *= factor;
  }
  if (!seconds || *seconds > kMaxSeconds) return std::nullopt;
  return milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

PreemptionOptions parse_preemption(const PreemptionFlags& flags,
                                   std::vector<std::string>& problems) {
  PreemptionOptions options;
  std::string_view rest = flags.signals;
  if (rest == "none") rest = {};
  while (!rest.empty()) {
    const std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    const auto number = parse_signal(name);
    if (!number || std::find(kUnusable.begin(), kUnusable.end(), *number) != kUnusable.end()) {
      problems.push_back("--preemption-signals: \"" + std::string(name) +
                         "\" is no signal that can warn; e.g. SIGUSR1,SIGTERM, or none");
    } else {
      options.signals.push_back(*number);
    }
  }
  const auto notice = parse_duration(flags.notice);
  if (notice && notice->count() > 0) {
    options.notice = *notice;
  } else {
    problems.push_back("--preemption-notice=" + flags.notice + ": wants a duration (60, 2m)");
  }
  if (flags.time_limit == "auto") {
    options.time_limit_is_slurms = true;
  } else if (!flags.time_limit.empty()) {
    options.time_limit = parse_duration(flags.time_limit);
    if (!options.time_limit || options.time_limit->count() == 0) {
      problems.push_back("--time-limit=" + flags.time_limit +
                         ": wants a duration (3600, 90m, 1-12:00:00) or auto");
    } else if (*options.time_limit <= options.notice) {
      problems.push_back("--time-limit=" + flags.time_limit +
                         ": must be longer than --preemption-notice (" + flags.notice + ")");
    }
  }
  return options;
}

std::string resolve_time_limit(PreemptionOptions& options, const Environment& environment,
                               std::int64_t now) {
  if (!options.time_limit_is_slurms) return {};
  const auto text = find_variable(environment, env::kSlurmJobEndTime);
  const auto end = text ? number(*text) : std::nullopt;
  if (!end) {
    return "--time-limit=auto: " + std::string(env::kSlurmJobEndTime) +
           (text ? "=" + *text + " is no time" : " is not set; give a duration");
  }
  const auto left = static_cast<std::int64_t>(*end) - now;
  if (left <= 0) {
    return "--time-limit=auto: the job's end, " + std::string(env::kSlurmJobEndTime) + "=" + *text +
           ", has passed";
  }
  options.time_limit = std::chrono::seconds(left);
  return {};
}

}  // namespace ddprun::launcher
