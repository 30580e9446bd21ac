// SPDX-License-Identifier: Apache-2.0
// "Did you mean …?" Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// The candidate nearest to `word`, or "" where none is near. "_" and "-" count as the same letter;
// a candidate that `word` begins, or one that begins with it, is near. To a word of more than
// kMostCompared bytes none is.
inline constexpr std::size_t kMostCompared = 64;
std::string nearest_to(std::string_view word, const std::vector<std::string>& candidates);
// The same as " (did you mean X?)", or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// A word that somebody made up, as messages have it: one line, of its first 80 bytes alone.
std::string shown_word(std::string_view word);

}  // namespace ddprun
