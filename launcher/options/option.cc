// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option.h"

#include "launcher/options/parse_value.h"

namespace ddprun::launcher {

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

OptionSetter number_to(int LaunchConfig::*field, int most) {
  return [field, most](const std::string& value, LaunchConfig& config) -> std::string {
    const auto number = parse_number(value, most);
    if (!number) return "wants a number from 0 to " + std::to_string(most);
    config.*field = *number;
    return {};
  };
}

OptionSetter seconds_to(std::chrono::milliseconds LaunchConfig::*field) {
  return [field](const std::string& value, LaunchConfig& config) -> std::string {
    const auto time = parse_seconds(value);
    if (!time) return "wants a number of seconds from 0 to 86400000";
    config.*field = *time;
    return {};
  };
}

OptionSetter positive_seconds_to(std::chrono::milliseconds LaunchConfig::*field) {
  return [field, set = seconds_to(field)](const std::string& value,
                                          LaunchConfig& config) -> std::string {
    std::string problem = set(value, config);
    if (problem.empty() && (config.*field).count() == 0) problem = "must be more than 0 seconds";
    return problem;
  };
}

bool is_one_of(std::string_view words, std::string_view value) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find('|'));
    if (word == value) return true;
    words.remove_prefix(std::min(word.size() + 1, words.size()));
  }
  return false;
}

}  // namespace ddprun::launcher
