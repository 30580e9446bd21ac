// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_table.h"

#include <algorithm>

#include "common/text.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {

const std::vector<Option>& option_table() {
  static const std::vector<Option> table = [] {
    std::vector<Option> all;
    for (auto part : {size_options, meeting_options, hosts_options, time_options, progress_options,
                      placement_options, limits_options, program_options, output_options,
                      torchrun_options, other_options}) {
      for (Option& option : part()) all.push_back(std::move(option));
    }
    return all;
  }();
  return table;
}

bool is_torchruns(const Option& option) {
  static const std::vector<std::string> names = filled_parts(
      "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone "
      "max-restarts monitor-interval start-method event-log-handler role module no-python "
      "run-path log-dir redirects tee local-ranks-filter duplicate-stdout-filters "
      "duplicate-stderr-filters node-rank master-addr master-port local-addr logs-specs "
      "numa-binding signals-to-handle shutdown-timeout virtual-local-rank "
      "log-line-prefix-template print-completion help",
      " ");
  return std::ranges::find(names, option.name) != names.end();
}

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const Option* find_option(std::string_view name) {
  const std::string wanted = underscored(std::string(name));
  for (const Option& option : option_table()) {
    if (underscored(option.name) == wanted) return &option;
  }
  return nullptr;
}

OptionSetter text_to(std::string LaunchConfig::*field) {
  return [field](const std::string& value, LaunchConfig& config) {
    config.*field = value;
    return std::string();
  };
}

OptionSetter nonempty_text_to(std::string LaunchConfig::*field) {
  return [field](const std::string& value, LaunchConfig& config) -> std::string {
    if (value.empty()) return "wants a value, got nothing";
    config.*field = value;
    return {};
  };
}

OptionSetter switch_to(bool LaunchConfig::*field) {
  return [field](const std::string& value, LaunchConfig& config) -> std::string {
    const auto on = parse_switch(value);
    if (!on) return "wants 1 or 0";
    config.*field = *on;
    return {};
  };
}

OptionSetter seconds_to(TimeField field) {
  return [field](const std::string& value, LaunchConfig& config) -> std::string {
    const auto time = parse_seconds(value);
    if (!time) return "wants a number of seconds from 0 to 86400000";
    field.of(config) = *time;
    return {};
  };
}

OptionSetter positive_seconds_to(TimeField field) {
  return [field, set = seconds_to(field)](const std::string& value,
                                          LaunchConfig& config) -> std::string {
    std::string problem = set(value, config);
    if (problem.empty() && field.of(config).count() == 0) problem = "must be more than 0 seconds";
    return problem;
  };
}

}  // namespace ddprun::launcher
