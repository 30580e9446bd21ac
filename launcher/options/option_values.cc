// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_values.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "common/env_names.h"
#include "common/parsed_number.h"
#include "common/suggest.h"
#include "common/text.h"
#include "launcher/options/option_table.h"

namespace ddprun::launcher {
namespace {

// Returns "--nnodes=0", "PET_NNODES=0", "/etc/ddprun/ddprun.toml:3: nnodes = 0".
std::string shown(const Option& option, const OptionValue& value) {
  if (value.origin == OptionValues::kCommandLine) return "--" + option.name + "=" + value.text;
  const bool by_variable = value.origin.find(':') == std::string::npos;
  if (by_variable) return value.origin + "=" + value.text;
  return value.origin + ": " + underscored(option.name) + " = " + value.text;
}

// Whether a file's value of this option is only for the machine that has the file.
bool is_of_this_machine(const std::string& option) {
  return option == "topology" || option == "preflight" || option == "preflight-doctor" ||
         option == "metrics";
}

// Whether an empty variable of this option counts as given. A user who sets it wants the proof, and
// all would run without it where TLS_CA=$X has an unset variable.
bool is_proof(const std::string& option) {
  return option == "token-file" || option.starts_with("tls-");
}

// DDPRUN_<name>s that belong to no option.
constexpr std::array<std::string_view, 19> kOthers = {
    env::kTrueLocalRank,     env::kRound,         env::kNodeAddr,
    env::kMasterNodeAddr,    env::kAgentSocket,   env::kTerminalColumns,
    env::kNcclLibrary,       env::kCudartLibrary, env::kFlightRecorderSize,
    env::kFlightRecorderDir, env::kDebug,         env::kNvmlLibrary,
    env::kRdzvEndpoint,      env::kRdzvId,        env::kConfig,
    env::kUnderChannel,      env::kSubmittedAs,   env::kDoctorThresholds,
    env::kSharedDir,
};

// Returns the variable of an option: "DDPRUN_" and max-restarts → "DDPRUN_MAX_RESTARTS".
std::string variable_of(const std::string& prefix, const Option& option) {
  std::string name = underscored(option.name);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  return prefix + name;
}

}  // namespace

void OptionValues::add(const OptionValues& other) {
  for (const auto& [name, value] : other.values_) values_[name] = value;
}

void OptionValues::add_files(const std::vector<ConfigFile>& files) {
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    for (const ConfigEntry& entry : file->options) {
      set(entry.option, {entry.value, file->path + ":" + std::to_string(entry.line)});
    }
  }
}

void OptionValues::add_environment(const Environment& environment) {
  if (const auto value = find_variable(environment, env::kShutdownTimeout)) {
    set("shutdown-timeout", {*value, env::kShutdownTimeout});
  }
  // After this time a torchrun leaves, and its job ends only if it serves the store. Here the job
  // always ends, so a time shorter than the default isn't used.
  if (const auto value = find_variable(environment, env::kExitBarrierTimeout)) {
    const auto time = parse_seconds(*value);
    if (!time || *time > LaunchConfig().timeouts.exit_barrier) {
      set("exit-barrier-timeout", {*value, env::kExitBarrierTimeout});
    }
  }
  for (const std::string prefix : {env::kPetPrefix, env::kOwnPrefix}) {
    for (const Option& option : option_table()) {
      if (option.only_typed) continue;
      const std::string variable = variable_of(prefix, option);
      const auto found = environment.find(variable);
      if (found == environment.end()) continue;
      if (found->second.empty() && !is_proof(option.name)) continue;
      set(option.name, {found->second, variable});
    }
  }
}

const OptionValue* OptionValues::find(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

std::map<std::string, std::string> OptionValues::of_any_machine() const {
  std::map<std::string, std::string> given;
  for (const auto& [name, value] : values_) {
    const bool is_in_file = value.origin.find(':') != std::string::npos;
    if (is_in_file && is_of_this_machine(name)) continue;
    given[name] = value.text;
  }
  return given;
}

std::string OptionValues::as_given(const std::string& name) const {
  const Option* option = find_option(name);
  const OptionValue* value = find(name);
  return option && value ? shown(*option, *value) : "";
}

void OptionValues::apply(LaunchConfig& config, std::vector<std::string>& problems) const {
  for (const Option& option : option_table()) {
    const OptionValue* value = find(option.name);
    if (value == nullptr) continue;
    const std::string problem = option.set(value->text, config);
    if (!problem.empty()) problems.push_back(shown(option, *value) + ": " + problem);
  }
}

std::vector<std::string> unknown_variables(const Environment& environment) {
  const std::string prefix = env::kOwnPrefix;
  std::vector<std::string> variables;
  std::vector<std::string> lines;
  for (const Option& option : option_table()) {
    if (!option.only_typed) variables.push_back(variable_of("", option));
  }
  for (const auto& [name, value] : environment) {
    if (!name.starts_with(prefix) || value.empty()) continue;
    if (std::find(kOthers.begin(), kOthers.end(), name) != kOthers.end()) continue;
    const std::string rest = name.substr(prefix.size());
    if (std::find(variables.begin(), variables.end(), rest) != variables.end()) continue;
    const std::vector<Option>& table = option_table();
    const auto typed = std::find_if(table.begin(), table.end(), [&](const Option& option) {
      return variable_of("", option) == rest;
    });
    if (typed != table.end()) {
      lines.push_back(name + " is ignored: --" + typed->name + " is for the command line");
    } else if (const std::string similar = nearest_to(rest, variables); !similar.empty()) {
      lines.push_back(concat(name, " is ignored (did you mean ", prefix, similar, "?)"));
    }
  }
  return lines;
}

std::optional<int> parse_number(std::string_view text, int most) {
  return number_within(text, 0, most);
}

std::optional<std::chrono::milliseconds> parse_seconds(std::string_view text) {
  const auto seconds = parsed_number<double>(text);
  if (!seconds || !(*seconds >= 0 && *seconds <= kMaxSeconds)) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

std::optional<bool> parse_switch(std::string_view text) {
  for (const char* yes : {"1", "true", "yes", "on", "t", "y"}) {
    if (equals_ignoring_case(text, yes)) return true;
  }
  for (const char* no : {"0", "false", "no", "off", "f", "n"}) {
    if (equals_ignoring_case(text, no)) return false;
  }
  return std::nullopt;
}

}  // namespace ddprun::launcher
