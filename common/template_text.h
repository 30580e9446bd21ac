// SPDX-License-Identifier: Apache-2.0
// "$name" and "${name}" in a text, as Python's string.Template has them. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace ddprun {

enum class DoubleDollar { kBecomesOne, kStays };

// string.Template(text).safe_substitute(values): "$name" and "${name}" become the value. A name
// that has none stays as it is written. A "$$" becomes "$" unless it is to stay, and is no begin of
// a name in either case. Any other "$" stays.
std::string safe_substitute(std::string_view text, const std::map<std::string, std::string>& values,
                            DoubleDollar dollars = DoubleDollar::kBecomesOne);

}  // namespace ddprun
