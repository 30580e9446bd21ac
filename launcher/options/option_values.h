// SPDX-License-Identifier: Apache-2.0
// The options' values, and who gave them. The value that was set last wins.
#pragma once

#include <chrono>
#include <climits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/environment.h"
#include "launcher/config_file.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

struct OptionValue {
  std::string text;
  std::string origin;  // "command line", "PET_NNODES", "/etc/ddprun/ddprun.toml:3"
};

class OptionValues {
 public:
  static constexpr char kCommandLine[] = "command line";

  void set(const std::string& name, OptionValue value) { values_[name] = std::move(value); }

  // Adds the values of `other`, which win.
  void add(const OptionValues& other);
  // The first file of the list wins.
  void add_files(const std::vector<ConfigFile>& files);
  // Adds torchrun's variables, PET_<OPTION>, then DDPRUN_<OPTION>.
  void add_environment(const Environment& environment);

  bool has(const std::string& name) const { return values_.contains(name); }
  // nullptr: nobody gave it.
  const OptionValue* find(const std::string& name) const;

  // Returns the value as it was given: "--nnodes=0", "PET_NNODES=0", "/etc/ddprun/ddprun.toml:3:
  // nnodes = 0"; empty: nobody gave it.
  std::string as_given(const std::string& name) const;

  // Returns the given values, without those that a file gives only for this machine.
  std::map<std::string, std::string> of_any_machine() const;

  // Sets the fields of `config` by the options' setters. Adds errors to `problems`, each with who
  // gave the value.
  void apply(LaunchConfig& config, std::vector<std::string>& problems) const;

 private:
  std::map<std::string, OptionValue> values_;  // by the option's name
};

// Returns a line for each DDPRUN_ variable that looks like a misspelled option, or names one that
// only the command line can give. Pure.
std::vector<std::string> unknown_variables(const Environment& environment);

// Applies the time limits that --rdzv-conf (torchrun's way) gives by key. A limit that is also
// given by option keeps the option's value. Adds to `problems`.
void apply_rdzv_conf(const OptionValues& given, LaunchConfig& config,
                     std::vector<std::string>& problems);

// ---- values as people type them; nullopt: the text isn't one. Pure ----

inline constexpr double kMaxSeconds = 86'400'000;  // 1000 days, the control protocol's limit

// "17", from 0 to `most`.
std::optional<int> parse_number(std::string_view text, int most = INT_MAX);

// "2.5": seconds, from 0 to kMaxSeconds.
std::optional<std::chrono::milliseconds> parse_seconds(std::string_view text);

// "1", "true", "yes", "on", "t", "y" and their opposites, in upper or lower case.
std::optional<bool> parse_switch(std::string_view text);

}  // namespace ddprun::launcher
