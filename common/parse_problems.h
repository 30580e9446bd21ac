// SPDX-License-Identifier: Apache-2.0
// Describes the errors of a command line that CLI11 has read. App is CLI::App; the caller includes
// CLI11. Pure.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "common/suggest.h"

namespace ddprun {

// Describes the error of `word`, which is on the command line of `app`, and which CLI11 can't
// assign.
template <typename App>
std::string unexpected_text(const App& app, const std::string& word) {
  std::vector<std::string> known;
  if (word.starts_with('-')) {
    const std::string flag = word.substr(0, word.find('='));
    for (const auto* option : app.get_options()) {
      known.push_back(option->get_name());
      if (known.back() == flag) return flag + " comes after the command";
    }
    return "unknown flag " + shown_word(flag) + did_you_mean(flag, known);
  }
  for (const auto* command : app.get_subcommands({})) known.push_back(command->get_name());
  if (!known.empty()) return "unknown command " + shown_word(word) + did_you_mean(word, known);
  bool takes_some = false;
  for (const auto* option : app.get_options()) takes_some |= option->get_positional();
  return (takes_some ? "one argument too many: \"" : "takes no argument, got \"") +
         shown_word(word) + "\"";
}

// Describes all errors of a command line that CLI11 refused with `error`: each unknown flag, then
// CLI11's own text, which has only the first error. `parsed` is `app`, or its command that was
// given. Extras is CLI::ExtrasError.
template <typename Extras, typename App, typename Error>
std::vector<std::string> parse_problems(const App& app, const Error& error, const App& parsed) {
  std::vector<std::string> problems;
  std::vector<std::string> words = app.remaining(true);
  std::erase(words, "--");  // CLI11 keeps it
  const bool has_no_command = &parsed == &app && !app.get_subcommands({}).empty();
  if (has_no_command && !words.empty() && !words.front().starts_with('-')) {
    return {unexpected_text(app, words.front())};  // the flags belong to another command
  }
  for (const std::string& word : words) {
    if (word.starts_with('-')) problems.push_back(unexpected_text(parsed, word));
  }
  const bool is_unexpected = dynamic_cast<const Extras*>(&error) != nullptr;
  if (!is_unexpected) problems.emplace_back(error.what());
  if (problems.empty() && !words.empty()) {
    problems.push_back(unexpected_text(parsed, words.front()));
  }
  if (problems.empty()) problems.emplace_back(error.what());
  return problems;
}

// Returns "FLAG: no file given" for each of `flags` that was given with an empty text, as
// --tls-ca="$CA" leaves it with an unset variable. A user who gives it wants the proof, and all
// would run without it.
template <typename App>
std::vector<std::string> empty_files(const App& app, std::initializer_list<const char*> flags) {
  std::vector<std::string> problems;
  for (const char* flag : flags) {
    const auto* option = app.get_option(flag);
    const bool is_given = option->count() > 0;
    if (is_given && option->results().back().empty()) {
      problems.push_back(std::string(flag) + ": no file given");
    }
  }
  return problems;
}

}  // namespace ddprun
