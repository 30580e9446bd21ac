// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_table.h"

#include "launcher/metrics/metrics_server.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

using agent::OutputOptions;

// Makes a setter for a part of config.output.
template <typename Part, typename Parse>
OptionSetter output(Part OutputOptions::*part, Parse parse) {
  return [part, parse](const std::string& value, LaunchConfig& config) -> std::string {
    return parse(value, config.output.*part);
  };
}

std::string parse_directory(std::string_view text, std::string& to) {
  if (text.empty()) return "wants a directory, got nothing";
  to = text;
  return {};
}

std::string parse_filters(std::string_view text, std::vector<std::string>& to) {
  to = agent::parse_line_filters(text);
  return {};
}

std::string parse_template(std::string_view text, std::optional<std::string>& to) {
  if (text.find('\n') != std::string_view::npos) return "wants a text of one line";
  to = text;
  return {};
}

std::string parse_slow_reader(std::string_view text, agent::SlowReader& to) {
  if (text != "block" && text != "drop") return "must be block or drop";
  to = text == "drop" ? agent::SlowReader::kDrop : agent::SlowReader::kBlock;
  return {};
}

std::string parse_watched(std::string_view text, bool& to) {
  const auto is_on = parse_switch(text);
  if (!is_on) return "must be on or off";
  to = *is_on;
  return {};
}

std::string parse_rank(std::string_view text, std::optional<int>& to) {
  to = parse_number(text);
  return to ? "" : "wants a global rank: 0, 1, 2 ...";
}

std::string parse_keep(std::string_view text, int& to) {
  constexpr int kMost = 1'000;
  const auto number = parse_number(text, kMost);
  if (!number) return "wants a number from 0 to " + std::to_string(kMost);
  to = *number;
  return {};
}

std::string set_events(const std::string& value, LaunchConfig& config) {
  if (value.empty()) return "wants a file or off, got nothing";
  if (value == "-") return "wants a file: stdout is the workers'";
  config.events = value;
  return {};
}

// Notes that the given option has no effect.
void note_ignored(const char* option, const std::string& value, const char* why,
                  LaunchConfig& config) {
  config.notes.push_back("--" + std::string(option) + "=" + value + " is ignored: " + why);
}

std::string set_monitor_interval(const std::string& value, LaunchConfig& config) {
  if (!parse_seconds(value)) return "wants a number of seconds";
  note_ignored("monitor-interval", value, "nothing is polled", config);
  return {};
}

std::string set_start_method(const std::string& value, LaunchConfig& config) {
  if (value != "spawn" && value != "fork" && value != "forkserver")
    return "must be spawn, fork or forkserver";
  note_ignored("start-method", value, "workers are programs, not Python functions", config);
  return {};
}

std::string set_logs_specs(const std::string& value, LaunchConfig& config) {
  note_ignored("logs-specs", value, "it names a plug-in of torchrun's own Python", config);
  return {};
}

std::string set_event_log(const std::string& value, LaunchConfig& config) {
  constexpr std::string_view kFile = "file=";
  const bool is_file = value.starts_with(kFile) && value.size() > kFile.size();
  if (!is_file && value != "null" && value != "console")
    return "must be null, console or file=PATH";
  config.event_log = value == "null" ? "" : value;
  return {};
}

std::string nothing(const std::string& /*value*/, LaunchConfig& /*config*/) { return {}; }

}  // namespace

std::vector<Option> output_options() {
  constexpr char kOutput[] = "Output of the workers (docs/output.md)";
  using O = OutputOptions;
  using agent::parse_rank_set, agent::parse_size, agent::parse_stream_spec;
  return {
      {"log-dir", "DIR", "",
       "log files go to DIR/<job id>_<random>/attempt_<restarts>/<local rank>/", kOutput,
       output(&O::log_dir, parse_directory)},
      {"redirects", "STREAMS", "",
       "1 stdout, 2 stderr, 3 both go to log files only; of some workers: 0:3,1:2", kOutput,
       output(&O::redirects, parse_stream_spec), 'r'},
      {"tee", "STREAMS", "", "likewise, to log files and to the console", kOutput,
       output(&O::tee, parse_stream_spec), 't'},
      {"local-ranks-filter", "RANKS", "", "only these workers of each node are shown: 0,4-7",
       kOutput, output(&O::local_ranks, parse_rank_set)},
      {"ranks-filter", "RANKS", "", "likewise, by global rank", kOutput,
       output(&O::ranks, parse_rank_set)},
      {"duplicate-stdout-filters", "TEXTS", "",
       "tee'd lines with one of these texts (a,b; two commas are one) go to filtered_stdout.log, "
       "too",
       kOutput, output(&O::stdout_filters, parse_filters)},
      {"duplicate-stderr-filters", "TEXTS", "", "likewise, to filtered_stderr.log", kOutput,
       output(&O::stderr_filters, parse_filters)},
      {"log-line-prefix-template", "TEXT", "",
       "before each line: ${role_name} ${local_rank} ${rank} ${hostname} ${node_rank} ${time}",
       kOutput, output(&O::prefix_template, parse_template)},
      {"slow-reader", "block|drop", "block",
       "output that nobody takes makes workers wait, or lines are left out and counted", kOutput,
       output(&O::slow_reader, parse_slow_reader)},
      {"log-max-size", "SIZE", "0", "of one log file (100M, 2G), then a new one is begun; 0: any",
       kOutput, output(&O::log_max_bytes, parse_size)},
      {"log-keep", "N", "1", "how many full log files stay beside the one that is written", kOutput,
       output(&O::log_keep, parse_keep)},
      {"watch-output", "on|off", "on",
       "who watches the job (the rendezvous' page, ddprunctl top) can see the ranks' last lines; "
       "--no-watch-output: off",
       kOutput, output(&O::is_watched, parse_watched)},
      {"stdin-rank", "RANK", "",
       "the global rank that has ddprun's stdin; default: 0 (under the name torchrun: all)",
       kOutput, output(&O::stdin_rank, parse_rank)},
      {"report", "FILE", "", "how the job ended, as JSON, also where it succeeded; -: on stdout",
       kOutput, nonempty_text_to(&LaunchConfig::report)},
      {"events", "FILE|off", "",
       "what happens to the job here, a line of JSON each; default: with the log files, if any",
       kOutput, set_events},
      {"metrics", "[HOST]:PORT|off", "off",
       "serve this node's metrics for Prometheus there; :PORT = on all interfaces; 0 = any free "
       "one",
       kOutput, parsed_to(&LaunchConfig::metrics, parse_metrics)},
  };
}

// Flags that ddprun only needs for torchrun's command lines: docs/torchrun.md.
std::vector<Option> torchrun_options() {
  constexpr char kGroup[] = "As torchrun has it";
  return {
      {"signals-to-handle", "NAMES", HandledSignals().text,
       "ddprun passes these on to the workers, and stops the job", kGroup,
       parsed_to(&LaunchConfig::signals_to_handle, parse_handled_signals)},
      {"event-log-handler", "null|console|file=PATH", "null",
       "what becomes of the workers, as lines of JSON on stderr or in a file", kGroup,
       set_event_log},
      {"monitor-interval", "SECONDS", "", "ignored, with a warning: nothing is polled", kGroup,
       set_monitor_interval},
      {"start-method", "spawn|fork|forkserver", "", "ignored, with a warning", kGroup,
       set_start_method},
      {"logs-specs", "NAME", "", "ignored, with a warning", kGroup, set_logs_specs},
  };
}

std::vector<Option> other_options() {
  using C = LaunchConfig;
  return {
      {"dry-run", "", "",
       "what would run where, with which environment, and no job (docs/dry-run.md)", kOtherGroup,
       switch_to(&C::dry_run), 0, true},
      {"json", "", "", "with --dry-run: the same as one JSON document", kOtherGroup,
       switch_to(&C::json), 0, true},
      {"config", "FILE", "", "options from there, too: docs/launcher.md", kOtherGroup, nothing, 0,
       true},
      {"show-config", "", "", "every option's value and where it comes from, and no job",
       kOtherGroup, nothing, 0, true},
      {"print-completion", "bash|zsh|fish|tcsh", "", "what that shell needs to complete flags",
       kOtherGroup, nothing, 0, true},
      {"print-man", "ddprun|ddprun.toml", "", "the manual page, for man -l -", kOtherGroup, nothing,
       0, true},
      {"help", "", "", "this text; -h: the most used flags", kOtherGroup, nothing, 'h', true},
      {"version", "", "", "version, and what is built in", kOtherGroup, nothing, 0, true},
  };
}

}  // namespace ddprun::launcher
