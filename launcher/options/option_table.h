// SPDX-License-Identifier: Apache-2.0
// The only place that knows ddprun's options: their names, help texts, and fields. The command
// line, the environment, the configuration files, --help, the man pages and the shells' completions
// are all made from this table. A new option needs a field in launch_config.h, an entry in its
// group's source (*_options.cc), and docs/launcher.md.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/parsed_number.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

// Sets a field from the value as given. Returns "", or what is wrong with it: "wants a number from
// 0 to 65535".
using OptionSetter = std::function<std::string(const std::string& value, LaunchConfig& config)>;

struct Option {
  std::string name;      // "max-restarts", without "--"
  std::string value;     // its value's form: "N", "auto|gpu|cpu"; empty: a switch
  std::string fallback;  // value if nobody gives it; empty: none that could be given
  std::string help;      // one line
  std::string group;     // the heading of its help
  OptionSetter set;
  char letter = 0;  // "-m"; 0: none
  // Whether only the command line can give it, not the environment or the files. This is so for
  // options that do something else than run a job, or that say where nodes meet. For the latter
  // endpoint_discovery.h has an order of its own.
  bool only_typed = false;
  // If the flag is given more than once, the setter gets all values, joined by `separator`.
  bool repeats = false;
  char separator = '\0';

  bool is_switch() const { return value.empty(); }
};

// All options, in the order of --help.
const std::vector<Option>& option_table();

// Returns the option of that name; nullptr: there is none. "-" and "_" count as the same letter.
const Option* find_option(std::string_view name);

// Whether torchrun 2.15 has an option of that name.
bool is_torchruns(const Option& option);

// "max-restarts" → "max_restarts", as in files' keys and in variables.
std::string underscored(std::string name);

// A time of LaunchConfig: a field of its own, or one of its JobTimeouts.
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

// A time limit of the whole job: an option, and a key of --rdzv-conf (the name, underscored).
struct TimeLimit {
  const char* option;
  TimeField field;
  const char* fallback;  // as Option::fallback
  const char* help;
};
const std::vector<TimeLimit>& time_limits();

// ---- parts of the table; --help shows each under one or two headings ----

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

// Takes any text, also an empty one.
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
// Takes 1, true, yes, on, or 0, false, no, off.
OptionSetter switch_to(bool LaunchConfig::*field);
// Takes a whole number from 0 to `most`. The field may be of a base class.
template <typename Part, typename Number>
OptionSetter number_to(Number Part::*field, int most = 1'000'000) {
  return [field, most](const std::string& value, LaunchConfig& config) -> std::string {
    const auto number = number_within(value, 0, most);
    if (!number) return "wants a number from 0 to " + std::to_string(most);
    config.*field = static_cast<Number>(*number);
    return {};
  };
}
// Takes seconds, maybe with a fraction: 0 … 1000 days.
OptionSetter seconds_to(TimeField field);
// As seconds_to(), but more than 0.
OptionSetter positive_seconds_to(TimeField field);
// Sets a part of the config with that part's own parser.
template <typename Part>
OptionSetter parsed_to(Part LaunchConfig::*part, std::string (*parse)(std::string_view, Part&)) {
  return [part, parse](const std::string& value, LaunchConfig& config) {
    return parse(value, config.*part);
  };
}

}  // namespace ddprun::launcher
