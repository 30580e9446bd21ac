// SPDX-License-Identifier: Apache-2.0
// What torchrun has and ddprun needs for its command lines only: docs/torchrun.md.
#include "launcher/options/option_groups.h"
#include "launcher/options/parse_value.h"

namespace ddprun::launcher {
namespace {

// Told once where somebody gives it.
void mean_nothing(const char* option, const std::string& value, const char* why,
                  LaunchConfig& config) {
  config.notes.push_back("--" + std::string(option) + "=" + value + " means nothing here: " + why);
}

std::string set_monitor_interval(const std::string& value, LaunchConfig& config) {
  if (!parse_seconds(value)) return "wants a number of seconds";
  mean_nothing("monitor-interval", value, "nothing is polled", config);
  return {};
}

std::string set_start_method(const std::string& value, LaunchConfig& config) {
  if (!is_one_of("spawn|fork|forkserver", value)) return "must be spawn, fork or forkserver";
  mean_nothing("start-method", value, "workers are programs, not Python functions", config);
  return {};
}

std::string set_logs_specs(const std::string& value, LaunchConfig& config) {
  mean_nothing("logs-specs", value, "it names a plug-in of torchrun's own Python", config);
  return {};
}

std::string set_signals(const std::string& value, LaunchConfig& config) {
  return parse_handled_signals(value, config.signals_to_handle);
}

std::string set_event_log(const std::string& value, LaunchConfig& config) {
  constexpr std::string_view kFile = "file=";
  const bool is_file = value.starts_with(kFile) && value.size() > kFile.size();
  if (!is_file && !is_one_of("null|console", value)) return "must be null, console or file=PATH";
  config.event_log = value == "null" ? "" : value;
  return {};
}

}  // namespace

std::vector<Option> torchrun_options() {
  constexpr char kGroup[] = "As torchrun has it";
  return {
      {"signals-to-handle", "NAMES", HandledSignals().text,
       "ddprun passes these on to the workers, and stops the job", kGroup, set_signals},
      {"event-log-handler", "null|console|file=PATH", "null",
       "what becomes of the workers, as lines of JSON on stderr or in a file", kGroup,
       set_event_log},
      {"monitor-interval", "SECONDS", "", "accepted, means nothing: nothing is polled", kGroup,
       set_monitor_interval},
      {"start-method", "spawn|fork|forkserver", "", "accepted, means nothing", kGroup,
       set_start_method},
      {"logs-specs", "NAME", "", "accepted, means nothing", kGroup, set_logs_specs},
  };
}

}  // namespace ddprun::launcher
