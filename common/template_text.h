// SPDX-License-Identifier: Apache-2.0
// Replaces "$name" and "${name}" in a text, as Python's string.Template does. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace ddprun {

enum class DoubleDollar { kBecomesOne, kStays };

// Works as string.Template(text).safe_substitute(values): "$name" and "${name}" become the value. A
// name without a value stays as it is. A "$$" becomes "$" unless it is to stay, and in neither case
// begins a name. Any other "$" stays.
std::string safe_substitute(std::string_view text, const std::map<std::string, std::string>& values,
                            DoubleDollar dollars = DoubleDollar::kBecomesOne);

}  // namespace ddprun
