// SPDX-License-Identifier: Apache-2.0
// How the page of ranks' stacks is asked for: "/v1/stacks?job=nightly&ranks=0-3,5". Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::membership {

inline constexpr char kStacksPath[] = "/v1/stacks";

struct StacksTarget {
  std::string run_id;
  std::string ranks;  // a list of them; empty: all
};

std::string stacks_target(const StacksTarget& target);
// nullopt: it is no such target.
std::optional<StacksTarget> parse_stacks_target(std::string_view text);

// "0,3,8-15" as its ranks, ascending, each once. nullopt: it is no list, or one of them isn't below
// `end`.
std::optional<std::vector<int>> parse_rank_list(std::string_view text, int end);

}  // namespace ddprun::membership
