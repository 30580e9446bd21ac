// SPDX-License-Identifier: Apache-2.0
// Slurm's compressed host lists. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// Expands "n[01-03,7],gpu2" to n01, n02, n03, n7, gpu2; several brackets in one name multiply.
// nullopt: the text doesn't parse, or names more than 100,000 hosts.
std::optional<std::vector<std::string>> expand_nodelist(std::string_view text);

}  // namespace ddprun
