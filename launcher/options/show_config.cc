// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/show_config.h"

#include <algorithm>

#include "common/env_names.h"
#include "launcher/options/option_groups.h"
#include "launcher/options/option_table.h"
#include "launcher/options/parse_value.h"
#include "launcher/terminal_text.h"

namespace ddprun::launcher {
namespace {

std::string toml_string(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += letter;
  }
  return result + '"';
}

std::string toml_value(const Option& option, const std::string& text) {
  if (option.is_switch()) return parse_switch(text).value_or(false) ? "true" : "false";
  const bool is_number =
      !text.empty() &&
      std::all_of(text.begin(), text.end(),
                  [](unsigned char letter) { return letter >= '0' && letter <= '9'; }) &&
      (text.size() == 1 || text[0] != '0');
  return is_number ? text : toml_string(one_line(text));
}

// Where the nodes meet has sources of its own (endpoint_discovery.h): those that speak of it.
std::string other_sources(const Option& option, const Environment& environment,
                          const std::vector<ConfigFile>& files) {
  std::string lines;
  const auto add = [&](const std::string& value, const std::string& origin) {
    lines +=
        underscored(option.name) + " = " + toml_string(one_line(value)) + "  # " + origin + "\n";
  };
  const auto variable = [&](const char* name) {
    if (const auto value = find_variable(environment, name)) add(*value, name);
  };
  if (option.name == "rdzv-endpoint") {
    variable(env::kRdzvEndpoint);
    variable(env::kPetRdzvEndpoint);
    for (const ConfigFile& file : files) {
      if (!file.rdzv_endpoint.empty()) add(file.rdzv_endpoint, file.path);
    }
  } else if (option.name == "rdzv-id") {
    variable(env::kRdzvId);
    variable(env::kPetRdzvId);
  } else if (option.name == "master-addr") {
    variable(env::kPetMasterAddr);
  } else if (option.name == "master-port") {
    variable(env::kPetMasterPort);
  }
  // The first one counts.
  return lines.substr(0, lines.find('\n') + 1);
}

}  // namespace

std::string show_config(const OptionValues& values, const Environment& environment,
                        const std::vector<ConfigFile>& files) {
  std::string text = "# Files: ";
  for (const ConfigFile& file : files) text += file.path + " ";
  text += files.empty() ? "none\n" : "\n";
  std::string group;
  for (const Option& option : option_table()) {
    if (option.group == kOtherGroup) continue;
    if (option.group != group) text += "\n# " + option.group + "\n";
    group = option.group;
    const std::string key = underscored(option.name);
    if (const OptionValue* value = values.find(option.name)) {
      text += key + " = " + toml_value(option, value->text) + "  # " + value->origin + "\n";
    } else if (const std::string other = other_sources(option, environment, files);
               !other.empty()) {
      text += other;
    } else if (option.only_typed && option.name != "rdzv-endpoint") {  // which files know, too
      text += "#--" + option.name + "  # not from a file: " + option.help + "\n";
    } else {
      const std::string fallback =
          option.is_switch() ? "false"
                             : (option.fallback.empty() ? "" : toml_value(option, option.fallback));
      text += "#" + key + " = " + fallback + "  # " + option.help + "\n";
    }
  }
  return text;
}

}  // namespace ddprun::launcher
