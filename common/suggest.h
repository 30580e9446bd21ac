// SPDX-License-Identifier: Apache-2.0
// Finds the word that a user probably meant: "did you mean …?" Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// Returns the candidate nearest to `word`, or "" if none is near. "_" and "-" count as the same
// letter. A candidate that begins with `word` (3 letters at least), or with which it begins, is
// near. A word of more than kMostCompared bytes has none.
inline constexpr std::size_t kMostCompared = 64;
std::string nearest_to(std::string_view word, const std::vector<std::string>& candidates);
// Returns the same as " (did you mean X?)", or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// Returns a user's word as messages show it: one line, with only its first 80 bytes.
std::string shown_word(std::string_view word);

}  // namespace ddprun
