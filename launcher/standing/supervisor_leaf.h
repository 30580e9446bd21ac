// SPDX-License-Identifier: Apache-2.0
// The place of a standing agent in its unit's cgroup: a leaf beside those of its jobs' workers, for
// a cgroup with processes can't give controllers on (docs/systemd.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun::launcher {

// The path of the leaf below `mount` (cgroup v2), by what /proc/self/cgroup says. nullopt: there is
// no v2, this is the machine's own cgroup, or it is in such a leaf already. Pure.
std::optional<std::string> supervisor_leaf(std::string_view own_cgroups, const std::string& mount);

// Goes there, with children from then on, where systemd has given the cgroup away (Delegate=).
// Returns what kept it from that, for a person; empty: nothing, or nothing was to be done.
std::string enter_supervisor_leaf();

}  // namespace ddprun::launcher
