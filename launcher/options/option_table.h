// SPDX-License-Identifier: Apache-2.0
// The one place that knows ddprun's options: how each is called, what is said of it, and where its
// value goes. The command line, the environment, the configuration files, --help, the man pages and
// the shells' completions are all made from this table. To add one: a field in launch_config.h, an
// entry in its group's source (*_options.cc), and docs/launcher.md.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/launch_config.h"

namespace ddprun::launcher {

// Sets a field from the value as it was given. Returns "" or what is wrong with the value, as in
// "wants a number from 0 to 65535".
using OptionSetter = std::function<std::string(const std::string& value, LaunchConfig& config)>;

struct Option {
  std::string name;      // "max-restarts": on the command line with "--"
  std::string value;     // what it takes, as shown: "N", "auto|gpu|cpu"; empty: a switch
  std::string fallback;  // what counts where nobody gives it; empty: no value that could be given
  std::string help;      // one line
  std::string group;     // heading that it stands under
  OptionSetter set;
  char letter = 0;  // "-m"; 0: none
  // Whether the environment and the configuration files can give it. It doesn't say if ddprun is to
  // do something else than run a job, nor where the nodes meet. endpoint_discovery.h has an order
  // of its own for that.
  bool only_typed = false;
  // If the flag is given more than once, all values count: the setter gets them joined by
  // `separator`.
  bool repeats = false;
  char separator = '\0';

  bool is_switch() const { return value.empty(); }
};

// In the order of --help.
const std::vector<Option>& option_table();

// nullptr: there is none. "-" and "_" count as the same letter.
const Option* find_option(std::string_view name);

// Whether torchrun 2.15 has an option of that name.
bool is_torchruns(const Option& option);

// "max-restarts" → "max_restarts", as keys of files and parts of variables have it.
std::string underscored(std::string name);

// A time in LaunchConfig: a field of its own, or one of its JobTimeouts.
class TimeField {
 public:
  TimeField(std::chrono::milliseconds LaunchConfig::*field) : own_(field) {}
  TimeField(std::chrono::milliseconds membership::JobTimeouts::*field) : jobs_(field) {}

  std::chrono::milliseconds& of(LaunchConfig& config) const {
    return own_ != nullptr ? config.*own_ : config.timeouts.*jobs_;
  }

 private:
  std::chrono::milliseconds LaunchConfig::*own_ = nullptr;
  std::chrono::milliseconds membership::JobTimeouts::*jobs_ = nullptr;
};

// A limit of the whole job: its option, and a key of --rdzv-conf (the name, underscored).
struct TimeLimit {
  const char* option;
  TimeField field;
  const char* fallback;  // Option's
  const char* help;
};
const std::vector<TimeLimit>& time_limits();

// ---- the parts of the table, each what --help shows under one heading or two ----

std::vector<Option> size_options();
std::vector<Option> meeting_options();
std::vector<Option> hosts_options();
std::vector<Option> time_options();
std::vector<Option> progress_options();  // hangs, preemption
std::vector<Option> placement_options();
std::vector<Option> limits_options();
std::vector<Option> program_options();
std::vector<Option> torchrun_options();
std::vector<Option> output_options();

// Options that do something else than run a job, and --config.
inline constexpr char kOtherGroup[] = "Other";
std::vector<Option> other_options();

// ---- setters ----

// Any text, the empty one, too.
OptionSetter text_to(std::string LaunchConfig::*field);
// As text_to(), but "--flag=$VARIABLE" with an unset variable is a problem.
OptionSetter nonempty_text_to(std::string LaunchConfig::*field);
template <typename Part>
OptionSetter nonempty_text_to(Part LaunchConfig::*part, std::string Part::*field) {
  return [part, field](const std::string& value, LaunchConfig& config) -> std::string {
    if (value.empty()) return "wants a value, got nothing";
    config.*part.*field = value;
    return {};
  };
}
// 1, true, yes, on, or 0, false, no, off.
OptionSetter switch_to(bool LaunchConfig::*field);
OptionSetter number_to(int LaunchConfig::*field, int most = 1'000'000);
// Seconds, with a fraction where one is given; 0 … 1000 days.
OptionSetter seconds_to(TimeField field);
// As seconds_to(), but more than 0.
OptionSetter positive_seconds_to(TimeField field);
// A part of the config from its own parser.
template <typename Part>
OptionSetter parsed_to(Part LaunchConfig::*part, std::string (*parse)(std::string_view, Part&)) {
  return [part, parse](const std::string& value, LaunchConfig& config) {
    return parse(value, config.*part);
  };
}

}  // namespace ddprun::launcher
