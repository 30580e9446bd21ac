// SPDX-License-Identifier: Apache-2.0
#include "ctl/emulate/plant.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ddprun::ctl {
namespace {

using Kind = Plant::Kind;

constexpr std::array<std::pair<const char*, Kind>, 9> kNamed = {{
    {"hasty", Kind::kHasty},
    {"unfenced", Kind::kUnfenced},
    {"rank-twice", Kind::kRankTwice},
    {"rank-missing", Kind::kRankMissing},
    {"budget", Kind::kBudget},
    {"no-deadline", Kind::kNoDeadline},
    {"no-deadline-agent", Kind::kNoDeadlineAgent},
    {"other-verdict", Kind::kOtherVerdict},
    {"unfounded-stop", Kind::kUnfoundedStop},
}};

// Whose acceptance in another round does something.
constexpr std::array<const char*, 13> kStale = {
    "workers_running", "worker_failed", "workers_succeeded", "first_step",  "workers_stopped",
    "worker_request",  "workers_left",  "stalled",           "start_round", "stop_round",
    "preempt",         "inspect",       "hang_verdict",
};
constexpr std::string_view kStalePrefix = "stale:";

}  // namespace

std::optional<Plant> plant_named(std::string_view name) {
  for (const auto& [each, kind] : kNamed) {
    if (name == each) return Plant{kind, {}};
  }
  if (!name.starts_with(kStalePrefix)) return std::nullopt;
  name.remove_prefix(kStalePrefix.size());
  const auto found = std::find(kStale.begin(), kStale.end(), name);
  if (found == kStale.end()) return std::nullopt;
  return Plant{Kind::kStaleMessage, *found};
}

std::vector<std::string> plant_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kNamed) names.emplace_back(name);
  for (const char* message : kStale) names.push_back(std::string(kStalePrefix) + message);
  return names;
}

}  // namespace ddprun::ctl
