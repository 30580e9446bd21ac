// SPDX-License-Identifier: Apache-2.0
// Words for a POSIX shell. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// Quotes `word` so that a POSIX shell reads it back as one word; leaves it where it needs no
// quotes.
std::string shell_quoted(const std::string& word);

// Quotes all of them, with blanks between.
std::string shell_line(const std::vector<std::string>& words);

// Splits a command line as a shell does: blanks, '…', "…" and \ (no variables, no patterns).
// nullopt: a quote doesn't end, or there is no word.
std::optional<std::vector<std::string>> split_words(std::string_view text);

}  // namespace ddprun
