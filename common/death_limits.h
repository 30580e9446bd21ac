// SPDX-License-Identifier: Apache-2.0
// How long a killed process may take to end, and how long each program waits for this end. The
// nearest one gives up first, and says why to the next one.
#pragma once

#include <chrono>

namespace ddprun {

// From SIGKILL to the end. A process gives its memory back as it dies: that takes 10 to 40 s for a
// terabyte, or for much that a GPU has pinned. Slurm's UnkillableStepTimeout is as long.
inline constexpr std::chrono::seconds kDeathLimit{60};

// The times below are added to --shutdown-timeout.
// An agent waits so long until its workers are gone. Flight recorders are written before the kill,
// in 2 s, and GPU memory becomes free after the end, in 5 s.
inline constexpr std::chrono::seconds kWorkersGoneMargin = kDeathLimit + std::chrono::seconds(10);
// The rendezvous waits so long until each agent has reported this.
inline constexpr std::chrono::seconds kNodeStoppedMargin =
    kWorkersGoneMargin + std::chrono::seconds(5);
// A program that has started ddprun waits so long from its SIGTERM to its SIGKILL.
inline constexpr std::chrono::seconds kDdprunGoneMargin =
    kNodeStoppedMargin + std::chrono::seconds(5);
// A launcher of several hosts waits so long for their ddpruns.
inline constexpr std::chrono::seconds kHostsGoneMargin =
    kDdprunGoneMargin + std::chrono::seconds(10);

}  // namespace ddprun
