// SPDX-License-Identifier: Apache-2.0
// Completion of a program's flags and their values by shells. Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

struct CompletedFlag {
  std::string name;  // "on-join"
  char letter = 0;   // 0: none
  // Its value, as --help shows it; empty: it has none. Words in small letters between "|" are
  // offered. FILE and PATH offer files, DIR offers directories.
  std::string value;
  std::string help;  // one line
};

struct CompletedCommand {
  std::string name;
  std::string help;
  std::vector<CompletedFlag> flags;
};

struct CompletedProgram {
  std::string name;
  std::vector<CompletedFlag> flags;
  // The first argument is one of them; empty: it has none.
  std::vector<CompletedCommand> commands = {};
  // True for ddprun: the first word is a program, the words after it belong to that program, and
  // flags may be spelled with "_".
  bool starts_another = false;
};

// Returns the script for "bash", "zsh", "fish" or "tcsh"; empty: another shell.
std::string completion_script(const CompletedProgram& program, std::string_view shell);

// Returns CLI11's name of a type as CompletedFlag::value. A text may be a file's name.
std::string completed_value(const std::string& type_name);

// Returns the flags of a program that CLI11 reads: those that --help shows. App is CLI::App; the
// caller includes CLI11.
template <typename App>
std::vector<CompletedFlag> completed_flags(const App& app) {
  std::vector<CompletedFlag> flags;
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty() || option->get_lnames().empty()) continue;
    const bool has_letter = !option->get_snames().empty();
    const bool has_value = option->get_items_expected_max() > 0;
    flags.push_back({.name = option->get_lnames().front(),
                     .letter = has_letter ? option->get_snames().front().front() : '\0',
                     .value = has_value ? completed_value(option->get_type_name()) : "",
                     .help = option->get_description()});
  }
  return flags;
}

template <typename App>
CompletedProgram completed_program(const App& app) {
  CompletedProgram program{.name = app.get_name(), .flags = completed_flags(app)};
  for (const auto* command : app.get_subcommands({})) {
    program.commands.push_back(
        {command->get_name(), command->get_description(), completed_flags(*command)});
  }
  return program;
}

// Adds the flag that asks for the script; `shell` stays empty if it isn't given.
template <typename App>
void add_completion(App& app, std::string& shell) {
  const std::function<std::string(const std::string&)> check = [](const std::string& text) {
    return completion_script({}, text).empty() ? text + " is not bash, zsh, fish or tcsh" : "";
  };
  app.add_option("--print-completion", shell, "Print what that shell needs to complete flags")
      ->type_name("bash|zsh|fish|tcsh")
      ->check(check, "");
}

}  // namespace ddprun
