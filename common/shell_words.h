// SPDX-License-Identifier: Apache-2.0
// Words for a POSIX shell. Pure.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// `word` so that a POSIX shell reads it back as one word; as it is where it needs no quotes.
std::string shell_quoted(const std::string& word);

// All of them so, with blanks between.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace ddprun
