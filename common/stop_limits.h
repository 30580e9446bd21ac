// SPDX-License-Identifier: Apache-2.0
// How long a killed process may take to end, and how long each of those waits who need that end.
// Whoever is nearer to it gives up first, and says why to who is further away.
#pragma once

#include <chrono>

namespace ddprun {

// From SIGKILL to the end. A process gives its memory back as it dies: that takes 10 to 40 s for a
// terabyte, or for much that a GPU has pinned. Slurm's UnkillableStepTimeout is as long.
inline constexpr std::chrono::seconds kDeathLimit{60};

// From here on: beyond --shutdown-timeout.
// An agent waits so long until its workers are gone. Flight recorders are written before, in 2 s,
// and GPU memory becomes free behind, in 5 s.
inline constexpr std::chrono::seconds kWorkersGoneMargin = kDeathLimit + std::chrono::seconds(10);
// The rendezvous waits so long until each agent has said that.
inline constexpr std::chrono::seconds kNodeStoppedMargin =
    kWorkersGoneMargin + std::chrono::seconds(5);
// The starter of a ddprun waits so long from its signal to SIGKILL.
inline constexpr std::chrono::seconds kDdprunGoneMargin =
    kNodeStoppedMargin + std::chrono::seconds(5);
// A launcher of several hosts waits so long for those.
inline constexpr std::chrono::seconds kHostsGoneMargin =
    kDdprunGoneMargin + std::chrono::seconds(10);

}  // namespace ddprun
