// SPDX-License-Identifier: Apache-2.0
#include "common/shell_words.h"

#include "common/text.h"

namespace ddprun {

std::string shell_quoted(const std::string& word) {
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char letter : word) {
    if (letter == '\'') {
      quoted += "'\\''";
    } else {
      quoted += letter;
    }
  }
  return quoted + "'";
}

std::string shell_line(const std::vector<std::string>& words) {
  return listed(words, " ", shell_quoted);
}

std::optional<std::vector<std::string>> split_words(std::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char letter = text[i];
    const bool is_blank = letter == ' ' || letter == '\t' || letter == '\n';
    if (quote == 0 && is_blank) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quote == 0 && (letter == '\'' || letter == '"')) {
      quote = letter;
    } else if (letter == quote) {
      quote = 0;
    } else {
      if (letter == '\\' && quote != '\'') {
        if (++i == text.size()) return std::nullopt;
        letter = text[i];
      }
      words.back() += letter;
    }
  }
  if (quote != 0 || words.empty()) return std::nullopt;
  return words;
}

}  // namespace ddprun
