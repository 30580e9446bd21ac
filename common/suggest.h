// SPDX-License-Identifier: Apache-2.0
// "Did you mean …?" Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// " (did you mean X?)" for the candidate nearest to `word`, or "" where none is near. "_" and "-"
// count as the same letter; a candidate that `word` begins, or one that begins with it, is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace ddprun
