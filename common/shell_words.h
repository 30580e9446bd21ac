// SPDX-License-Identifier: Apache-2.0
// Words for a POSIX shell. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// `word` so that a POSIX shell reads it back as one word; as it is where it needs no quotes.
std::string shell_quoted(const std::string& word);

// All of them so, with blanks between.
std::string shell_line(const std::vector<std::string>& words);

// A command line as a shell takes it apart: blanks, '…', "…" and \ (no variables, no patterns).
// nullopt: a quote that doesn't end, or no word.
std::optional<std::vector<std::string>> split_words(std::string_view text);

}  // namespace ddprun
