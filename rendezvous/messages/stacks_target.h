// SPDX-License-Identifier: Apache-2.0
// The HTTP target that asks for ranks' stacks: "/v1/stacks?job=nightly&ranks=0-3,5". Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::membership {

inline constexpr char kStacksPath[] = "/v1/stacks";
// Ranks that one question is about: an agent may say that it has any number of workers.
inline constexpr int kMostStacks = 16'384;

struct StacksTarget {
  std::string run_id;
  std::string ranks;  // a list like "0-3,5"; empty: all
};

std::string stacks_target(const StacksTarget& target);
// Returns nullopt if the text is no such target.
std::optional<StacksTarget> parse_stacks_target(std::string_view text);

// Returns the ranks of a list like "0,3,8-15", ascending, each once. nullopt: the text is no list,
// or a rank isn't below `end`.
std::optional<std::vector<int>> parse_rank_list(std::string_view text, int end);

}  // namespace ddprun::membership
