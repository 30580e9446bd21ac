// SPDX-License-Identifier: Apache-2.0
// What was given for the options, and by whom: of several the one that was set last counts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/environment.h"
#include "launcher/config_file.h"
#include "launcher/options/option.h"

namespace ddprun::launcher {

struct OptionValue {
  std::string text;
  std::string origin;  // "command line", "PET_NNODES", "/etc/ddprun/ddprun.toml:3"
};

// "DDPRUN_" and the option max-restarts: "DDPRUN_MAX_RESTARTS".
std::string variable_of(const std::string& prefix, const Option& option);

class OptionValues {
 public:
  static constexpr char kCommandLine[] = "command line";

  void set(const std::string& name, OptionValue value) { values_[name] = std::move(value); }

  // Those of `other` win.
  void add(const OptionValues& other);
  // The first file of a list is the strongest one.
  void add_files(const std::vector<ConfigFile>& files);
  // torchrun's own variables, PET_<OPTION>, then DDPRUN_<OPTION>.
  void add_environment(const Environment& environment);

  bool has(const std::string& name) const { return values_.contains(name); }
  // nullptr: nobody gave it.
  const OptionValue* find(const std::string& name) const;

  // "--nnodes=0", "PET_NNODES=0", "/etc/ddprun/ddprun.toml:3: nnodes = 0"; empty: nobody gave it.
  std::string as_given(const std::string& name) const;

  // Of each option that somebody gave; without what a file says of this machine alone.
  std::map<std::string, std::string> of_any_machine() const;

  // Into the fields, each value through its option's setter. Adds what is wrong to `problems`,
  // each with who gave it.
  void apply(LaunchConfig& config, std::vector<std::string>& problems) const;

 private:
  std::map<std::string, OptionValue> values_;  // by the option's name
};

}  // namespace ddprun::launcher
