// SPDX-License-Identifier: Apache-2.0
// "Did you mean …?" Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// " (did you mean X?)" for the candidate nearest to `word`, or "" where none is near. "_" and "-"
// count as the same letter; a candidate that `word` begins, or one that begins with it, is near. To
// a word of more than kMostCompared bytes none is.
inline constexpr std::size_t kMostCompared = 64;
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// A word that somebody made up, as messages have it: one line, of its first 80 bytes alone.
std::string shown_word(std::string_view word);

// What is wrong with `word`, which the command line of `app` has and CLI11 can't place. App:
// CLI::App, which the program that has one includes.
template <typename App>
std::string unexpected_text(const App& app, const std::string& word) {
  std::vector<std::string> known;
  if (word.starts_with('-')) {
    const std::string flag = word.substr(0, word.find('='));
    for (const auto* option : app.get_options()) known.push_back(option->get_name());
    return "unknown flag " + shown_word(flag) + did_you_mean(flag, known);
  }
  for (const auto* command : app.get_subcommands({})) known.push_back(command->get_name());
  if (!known.empty()) return "unknown command " + shown_word(word) + did_you_mean(word, known);
  bool takes_some = false;
  for (const auto* option : app.get_options()) takes_some |= option->get_positional();
  return (takes_some ? "one argument too many: \"" : "takes no argument, got \"") +
         shown_word(word) + "\"";
}

}  // namespace ddprun
