// SPDX-License-Identifier: Apache-2.0
#include "launcher/config_file.h"

#include "common/config_texts.h"
#include "common/error.h"
#include "common/suggest.h"
#include "common/text.h"
#include "common/toml.h"
#include "launcher/options/option_table.h"

namespace ddprun::launcher {
namespace {

// An error in one key.
struct Complaint {
  toml::source_region where;
  std::string what;
};

[[noreturn]] void complain(const toml::source_region& where, const std::string& what) {
  throw Complaint{where, what};
}

std::string string_in(const toml::node& node, const std::string& what) {
  const auto* value = node.as_string();
  if (!value) complain(node.source(), what);
  return value->get();
}

// Returns the value as the command line has it.
std::string value_of(const toml::node& node, const Option& option) {
  if (const auto* on = node.as_boolean(); on && option.is_switch()) return on->get() ? "1" : "0";
  if (!option.is_switch()) {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* number = node.as_integer()) return std::to_string(number->get());
    if (const auto* number = node.as_floating_point()) return concat(number->get());
  }
  complain(node.source(),
           underscored(option.name) + " wants " +
               (option.is_switch() ? "true or false" : "a text or a number: " + option.value));
}

std::vector<std::string> known_keys() {
  std::vector<std::string> keys = {"rdzv_endpoint", "hosts", "topology"};
  for (const Option& option : option_table()) {
    if (!option.only_typed) keys.push_back(underscored(option.name));
  }
  return keys;
}

// Sets one key's field. Throws Complaint.
void take(const toml::key& key, const toml::node& node, ConfigFile& config) {
  const std::string name(key.str());
  if (name == "rdzv_endpoint") {
    config.rdzv_endpoint =
        string_in(node, "rdzv_endpoint wants \"HOST:PORT\" or \"HOST:PORT,HOST:PORT\"");
  } else if (name == "hosts") {
    const toml::array* hosts = node.as_array();
    if (!hosts) complain(node.source(), "hosts wants [\"host1\", \"host2\"]");
    for (const toml::node& host : *hosts) {
      config.hosts.push_back(string_in(host, "hosts wants [\"host1\", \"host2\"]"));
    }
  } else if (name == "topology") {
    config.topology = string_in(node, "topology wants \"SWITCH.SWITCH\", widest first");
  } else if (const Option* option = find_option(name); option && !option->only_typed) {
    config.options.push_back(
        {option->name, value_of(node, *option), static_cast<int>(key.source().begin.line)});
  } else {
    complain(key.source(), "unknown key " + shown_word(name) + did_you_mean(name, known_keys()));
  }
}

}  // namespace

ConfigFile parse_config_file(std::string_view text, const std::string& path) {
  ConfigFile config;
  config.path = path;
  TomlProblems problems(path);
  const toml::table table = parsed_toml(text, path);
  for (const auto& [key, node] : table) {
    try {
      take(key, node, config);
    } catch (const Complaint& wrong) {
      problems.add(wrong.where, wrong.what);
    }
  }
  problems.throw_any();
  return config;
}

std::vector<ConfigFile> load_config_files(const std::string& named,
                                          const Environment& environment) {
  std::vector<ConfigFile> files;
  std::string wrong;
  for (const ConfigText& each : read_config_texts(named, environment)) {
    if (each.is_hidden) {
      files.push_back({.path = each.path, .rdzv_endpoint = "", .hosts = {}, .is_hidden = true});
      continue;
    }
    try {
      files.push_back(parse_config_file(each.text, each.path));
    } catch (const Error& error) {
      wrong += concat(wrong.empty() ? "" : "\n", error.what());
    }
  }
  if (!wrong.empty()) throw Error(ErrorCode::kInvalidArgument, wrong);
  return files;
}

}  // namespace ddprun::launcher
